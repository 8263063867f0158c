"""Build a small index and query it with generated code, without the divgrpc client.

Start a server at HOST:PORT, and run the program in the folder of the code that protoc generated:

    python build_and_query.py HOST:PORT
"""

import itertools
import sys

import grpc

from divgrpc_protos.v1 import diverse_index_pb2_grpc, index_pb2, query_pb2, vectors_pb2


def matrix(rows):
    """Return rows of equal length as a Vectors message."""
    values = [value for row in rows for value in row]
    dense = vectors_pb2.DenseMatrix(rows=len(rows), cols=len(rows[0]), values=values)
    return vectors_pb2.Vectors(dense=dense)


def near_copies():
    """Return the eight corners of a cube, each with two near-copies."""
    corners = itertools.product((-1, 1), repeat=3)
    return [
        [side + 0.01 * copy * axis for axis, side in enumerate(corner)]
        for corner in corners
        for copy in range(3)
    ]


def main(target):
    """Build and query an index on the server `target`, and print one line for each result."""
    with grpc.insecure_channel(target) as channel:
        stub = diverse_index_pb2_grpc.DiverseIndexStub(channel)
        request = index_pb2.BuildOnceRequest(
            index="cube-python", replace=True, vectors=matrix(near_copies())
        )
        index = stub.BuildOnce(request, timeout=60).index
        print(f"built {index.name}: {index.rows} rows, {index.dims} dimensions")

        query = query_pb2.QueryRequest(
            index="cube-python", queries=matrix([[1.0, 0.9, 0.8]]), k=3, diversity=0.3
        )
        answer = stub.Query(query, timeout=5)
        # The request has one query row, so all ids and scores are its results, in rank order. A
        # score is the cosine of a point with the query.
        for point_id, score in zip(answer.ids, answer.scores, strict=True):
            print(f"id {point_id} score {score:.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
