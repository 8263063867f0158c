// Build a small index and query it from Node. Start a server at HOST:PORT, and run:
//
//     npm ci
//     node build_and_query.js HOST:PORT

'use strict';

const path = require('node:path');
const { promisify } = require('node:util');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const PROTOS = path.join(__dirname, '..', '..', '..', 'protos');

const contract = grpc.loadPackageDefinition(
  protoLoader.loadSync('divgrpc_protos/v1/diverse_index.proto', {
    includeDirs: [PROTOS, path.join(PROTOS, 'third_party')],
    keepCase: true, // fields keep the names of the .proto
    longs: String, // ids are 64 bits wide
  }),
).divgrpc.v1;

// Returns rows of equal length as a Vectors message.
function matrix(rows) {
  return { dense: { rows: rows.length, cols: rows[0].length, values: rows.flat() } };
}

// Returns the eight corners of a cube, each with two near-copies.
function nearCopies() {
  const rows = [];
  for (const x of [-1, 1]) {
    for (const y of [-1, 1]) {
      for (const z of [-1, 1]) {
        for (const copy of [0, 1, 2]) {
          rows.push([x, y, z].map((side, axis) => side + 0.01 * copy * axis));
        }
      }
    }
  }
  return rows;
}

async function main(target) {
  const client = new contract.DiverseIndex(target, grpc.credentials.createInsecure());
  const call = (method, request, seconds) =>
    promisify(client[method].bind(client))(request, { deadline: Date.now() + 1000 * seconds });
  try {
    const { index } = await call(
      'BuildOnce',
      { index: 'cube-node', replace: true, vectors: matrix(nearCopies()) },
      60,
    );
    console.log(`built ${index.name}: ${index.rows} rows, ${index.dims} dimensions`);

    const answer = await call(
      'Query',
      { index: 'cube-node', queries: matrix([[1, 0.9, 0.8]]), k: 3, diversity: 0.3 },
      5,
    );
    // The request has one query row, so all ids and scores are its results, in rank order.
    // A score is the cosine of a point with the query.
    answer.ids.forEach((id, rank) => {
      console.log(`id ${id} score ${answer.scores[rank].toFixed(4)}`);
    });
  } finally {
    client.close();
  }
}

main(process.argv[2] || '127.0.0.1:50051').catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
