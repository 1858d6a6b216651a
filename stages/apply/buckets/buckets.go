// Package buckets is a backend for tests: its buckets are maps, and what is written is read at once.
package buckets

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"sluice/stages/apply/backend"
)

// Memory is a backend.Reader and a backend.Writer.
type Memory struct {
	maps [backend.Meta + 1]map[string][]byte
}

// New returns empty buckets.
func New() *Memory {
	m := &Memory{}
	for i := range m.maps {
		m.maps[i] = map[string][]byte{}
	}
	return m
}

// Put stores value under key.
func (m *Memory) Put(b backend.Bucket, key, value []byte) { m.maps[b][string(key)] = value }

// Delete removes key.
func (m *Memory) Delete(b backend.Bucket, key []byte) { delete(m.maps[b], string(key)) }

// Get returns the value of key, nil when absent.
func (m *Memory) Get(b backend.Bucket, key []byte) []byte { return m.maps[b][string(key)] }

// Scan calls fn for the keys in [from, to) in order.
func (m *Memory) Scan(b backend.Bucket, from, to []byte, fn func(key, value []byte) bool) {
	for _, k := range m.keys(b) {
		if k < string(from) || (to != nil && k >= string(to)) {
			continue
		}
		if !fn([]byte(k), m.maps[b][k]) {
			return
		}
	}
}

func (m *Memory) keys(b backend.Bucket) []string {
	keys := make([]string, 0, len(m.maps[b]))
	for k := range m.maps[b] {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Dump writes the content of the given buckets, all without any: one line per key, text quoted, bytes in hex.
func Dump(r backend.Reader, of ...backend.Bucket) string {
	if len(of) == 0 {
		for b := backend.Alarm; b <= backend.Meta; b++ {
			of = append(of, b)
		}
	}
	var out strings.Builder
	for _, b := range of {
		r.Scan(b, nil, nil, func(k, v []byte) bool {
			fmt.Fprintf(&out, "%s %s = %s\n", b, show(k), show(v))
			return true
		})
	}
	return out.String()
}

func show(b []byte) string {
	binary := func(r rune) bool { return r < 0x20 || r > 0x7e }
	if len(b) == 0 || bytes.ContainsFunc(b, binary) {
		return fmt.Sprintf("%x", b)
	}
	return string(b)
}
