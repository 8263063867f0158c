"""What queries, selectors, batches and label models cost in process, at any size."""
