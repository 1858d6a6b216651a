// Package backend keeps the applied state in one bbolt file of etcd's schema.
package backend
