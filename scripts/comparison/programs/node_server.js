// Answers every request with a few bytes. Listens on the port or path that it is given.
"use strict";
const http = require("http");

const where = process.argv[2];
const server = http.createServer((request, response) => {
    response.setHeader("Content-Type", "text/plain");
    response.end("small\n".repeat(10));
});
server.keepAliveTimeout = 60000;
if (/^\d+$/.test(where)) server.listen(Number(where), "127.0.0.1");
else server.listen(where);
