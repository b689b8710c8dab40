"""A gRPC server that answers with what it was asked. Listens on the address that it is given."""

import concurrent.futures
import sys

import grpc

HANDLERS = {"Say": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}

server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", HANDLERS),))
server.add_insecure_port(sys.argv[1])
server.start()
server.wait_for_termination()
