'use strict';
// HTTP server: node http_server.js [PORT]. Prints "port N" once it listens. GET /N answers N bytes of a
// known pattern in chunks, POST answers the body it got. With --expose-gc
// SIGUSR2 has it give back the memory of what is over.
const http = require('http');

const server = http.createServer((request, response) => {
  if (request.method === 'POST') {
    request.pipe(response);
    return;
  }
  response.end(Buffer.alloc(Number(request.url.slice(1)), 'sanshim'));
});
// An idle connection stays as long as somebody looks at it.
server.keepAliveTimeout = 0;
server.listen(Number(process.argv[2] || 0), '127.0.0.1', () => console.log('port ' + server.address().port));
if (global.gc) process.on('SIGUSR2', () => global.gc());
