package rpc

import (
	"google.golang.org/grpc/mem"
)

// garbage is a client's codec that sends what is no message.
type garbage struct{}

func (garbage) Name() string { return "proto" }

func (garbage) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer("\x0a\xff\xff\xff\xff\x0f")}, nil
}

func (garbage) Unmarshal(mem.BufferSlice, any) error { return nil }
