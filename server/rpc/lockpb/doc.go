// Package lockpb is the generated code of etcd's Lock service: its messages, its gRPC stubs, and its handlers
// of the JSON gateway.
//
// After a change of lock.proto it is generated anew, from the repository's root, by protoc with protoc-gen-go
// v1.36.11, protoc-gen-go-grpc v1.6.2 and protoc-gen-grpc-gateway v2.29.0. $INCLUDE holds etcd's api module
// as etcd/api, and google/api of googleapis:
//
//	protoc -I . -I $INCLUDE --go_out=. --go-grpc_out=. --grpc-gateway_out=. \
//	    --go_opt=paths=source_relative --go-grpc_opt=paths=source_relative \
//	    --grpc-gateway_opt=paths=source_relative,omit_package_doc=true server/rpc/lockpb/lock.proto
package lockpb
