'use strict';
// Echo server on net.Server: node echo_server.js [HOST]. Prints "port N" once it listens, sends back
// what it receives until the client's end of stream, and runs until it is killed.
const net = require('net');

const server = net.createServer({ allowHalfOpen: true }, (connection) => connection.pipe(connection));
server.listen({ port: 0, host: process.argv[2] || '127.0.0.1' }, () => {
  console.log('port ' + server.address().port);
});
