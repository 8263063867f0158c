"""The evaluator: a process that serves Evaluate, EvaluateLabels and Diagnose calls, one at a time.

The evaluator runs at low priority. It may import the core, codec, ipc and logging. It must not
import grpc.
"""
