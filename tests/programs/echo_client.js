'use strict';
// Echo client on net.Socket: node echo_client.js PORT CONNECTIONS [HOST]. It does what
// echo_client.py does, with the same sizes, and prints "hold" and "ok N" at the same points.
const net = require('net');

const SIZES = [1, 2, 7, 64, 1000, 1519, 1520, 1521, 1536, 4096, 65535, 65536, 300000];
const STREAM = 3000000;
const port = Number(process.argv[2]);
const count = Number(process.argv[3]);
const host = process.argv[4] || '127.0.0.1';

function payload(size, seed) {
  const block = Buffer.from(Array.from({ length: 4093 }, (_, i) => (seed * 7 + i * 31) % 251));
  return Buffer.concat(Array(Math.floor(size / block.length) + 1).fill(block)).subarray(0, size);
}

function fail(message) {
  console.error(message);
  process.exit(1);
}

// Resolves with what arrived: exactly size bytes, or everything up to the end of the stream.
function receive(connection, size) {
  return new Promise((resolve) => {
    const parts = [];
    let length = 0;
    const finish = () => {
      connection.removeListener('data', take);
      connection.removeListener('end', finish);
      resolve(Buffer.concat(parts));
    };
    const take = (part) => {
      parts.push(part);
      length += part.length;
      if (size !== undefined && length >= size) finish();
    };
    connection.on('data', take);
    connection.on('end', finish);
  });
}

function connect() {
  return new Promise((resolve) => {
    const connection = net.connect({ port, host, allowHalfOpen: true }, () => resolve(connection));
    connection.on('error', (error) => fail('connection: ' + error.message));
  });
}

async function messages(connection, seed) {
  for (const size of SIZES) {
    const message = payload(size, seed);
    const answer = receive(connection, size);
    connection.write(message);
    if (!(await answer).equals(message)) fail('message of ' + size + ' came back changed');
  }
}

async function stream(connection, seed) {
  const message = payload(STREAM, seed);
  const answer = receive(connection);
  connection.end(message);
  const got = await answer;
  if (!got.equals(message)) fail('stream came back changed, ' + got.length + ' bytes');
}

async function main() {
  const connections = await Promise.all(Array.from({ length: count }, connect));
  await Promise.all(connections.map(messages));
  console.log('hold');
  await new Promise((resolve) => process.stdin.once('data', resolve));
  process.stdin.pause();
  await Promise.all(connections.map(stream));
  console.log('ok ' + count * (SIZES.reduce((a, b) => a + b) + STREAM));
}

main();
