'use strict';
// HTTP client with a keep-alive agent: node http_client.js PORT. Checks GET and POST of many sizes,
// prints "hold", waits for a line on stdin with its connections open, does it again, prints "ok".
const http = require('http');

const port = Number(process.argv[2]);
const agent = new http.Agent({ keepAlive: true, maxSockets: 4 });
const SIZES = [0, 1, 1000, 100000, 3000000];

function fail(message) {
  console.error(message);
  process.exit(1);
}

function ask(method, path, body) {
  return new Promise((resolve) => {
    const request = http.request({ host: '127.0.0.1', port, method, path, agent }, (response) => {
      const parts = [];
      response.on('data', (part) => parts.push(part));
      response.on('end', () => resolve(Buffer.concat(parts)));
    });
    request.on('error', (error) => fail(method + ' ' + path + ': ' + error.message));
    request.end(body);
  });
}

async function round() {
  await Promise.all(SIZES.map(async (size) => {
    const pattern = Buffer.alloc(size, 'sanshim');
    if (!(await ask('GET', '/' + size)).equals(pattern)) fail('GET of ' + size + ' differs');
    if (!(await ask('POST', '/', pattern)).equals(pattern)) fail('POST of ' + size + ' differs');
  }));
}

// So much on every connection that all are on the SAN.
async function warmUp() {
  for (let i = 0; i < 200; i++) {
    await Promise.all(Array.from({ length: agent.maxSockets }, () => ask('GET', '/1')));
  }
}

async function main() {
  await round();
  await warmUp();
  console.log('hold');
  await new Promise((resolve) => process.stdin.once('data', resolve));
  process.stdin.pause();
  await round();
  agent.destroy();
  console.log('ok');
}

main();
