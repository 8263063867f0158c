"""The evaluator: a process that serves Evaluate and EvaluateLabels calls, one at a time.

The evaluator runs at low priority. It may import the core, codec, ipc and logging. It must not
import grpc.
"""
