// Build a small index and ask it, from Node. With a server at HOST:PORT:
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

// Rows of equal length as the wire has them.
function matrix(rows) {
  return { dense: { rows: rows.length, cols: rows[0].length, values: rows.flat() } };
}

// The eight corners of a cube, each with two near-copies.
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
    // One query row: its results are all there are, in the order in which they were picked.
    // A score is the cosine with the query.
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
