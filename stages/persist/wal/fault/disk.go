// Package fault is a disk in memory that fails on request and forgets in a crash what was not synced.
//
// It stands where the real disk does, at wal.FS, under tests and simulations. It is stricter than a real
// file system where programs may not rely on one: a name is durable only after SyncDir of its directory, a
// byte only after Sync of its file, and a Sync that failed has forgotten what it was to write.
package fault

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sluice/stages/persist/wal"
)

// Kind is what an operation does.
type Kind int

const (
	Open Kind = iota
	Write
	Read
	Sync
	Truncate
	Allocate
	Lock
	Rename
	Remove
	SyncDir
)

// Op is one operation about to happen.
type Op struct {
	Kind   Kind
	Path   string // of the file or directory
	Offset int64  // of Write and Read; the new size for Truncate and Allocate
	Bytes  int    // of Write and Read
}

// Short is what a Before hook returns to let only the first Bytes of a write happen, and fail then.
type Short struct {
	Bytes int
	Err   error
}

func (s Short) Error() string { return fmt.Sprintf("short write of %d bytes: %v", s.Bytes, s.Err) }
func (s Short) Unwrap() error { return s.Err }

// Disk is the disk. Any number of goroutines may use it. The zero Disk is not valid; use New.
type Disk struct {
	mu      sync.Mutex // guards everything but the call of before
	before  func(Op) error
	nodes   map[string]*node // by name, as processes see them
	durable map[string]*node // by name, as a crash would leave them
	pending []nameOp         // in order, not yet durable
	dirs    map[string]bool
	syncs   int
	writes  int
}

// node is a file's content.
type node struct {
	data    []byte // as processes see it
	stable  []byte // as far as synced
	changes []change
	locked  *handle
}

// change is an unsynced write, or a change of size when size is not negative.
type change struct {
	off  int64
	data []byte
	size int64
}

// nameOp is an unsynced change of names: to becomes node n, from goes; either may be empty.
type nameOp struct {
	from, to string
	n        *node // nil for a directory's rename
}

// New returns an empty disk.
func New() *Disk {
	return &Disk{nodes: map[string]*node{}, durable: map[string]*node{}, dirs: map[string]bool{}}
}

// Before sets the hook that is asked before each operation, nil for none. The operation fails with what it
// returns; it may wait. It is called without a lock held, by whoever does the operation.
func (d *Disk) Before(hook func(Op) error) {
	d.mu.Lock()
	d.before = hook
	d.mu.Unlock()
}

// Counts returns how many Syncs and Writes have succeeded.
func (d *Disk) Counts() (syncs, writes int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs, d.writes
}

func (d *Disk) ask(op Op) error {
	d.mu.Lock()
	hook := d.before
	d.mu.Unlock()
	if hook == nil {
		return nil
	}
	if err := hook(op); err != nil {
		return fmt.Errorf("%s: %w", op.Path, err)
	}
	return nil
}

// Open follows os.OpenFile for the flags O_CREATE, O_EXCL and O_TRUNC.
func (d *Disk) Open(name string, flag int, _ os.FileMode) (wal.File, error) {
	name = filepath.Clean(name)
	if err := d.ask(Op{Kind: Open, Path: name}); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.nodes[name]
	switch {
	case n == nil && flag&os.O_CREATE == 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case n != nil && flag&os.O_EXCL != 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrExist}
	case n == nil:
		n = &node{}
		d.nodes[name] = n
		d.pending = append(d.pending, nameOp{to: name, n: n})
	case flag&os.O_TRUNC != 0:
		n.resize(0)
	}
	return &handle{disk: d, node: n, path: name}, nil
}

// Rename moves a file over another, or a directory to a name that no file stands below.
func (d *Disk) Rename(from, to string) error {
	from, to = filepath.Clean(from), filepath.Clean(to)
	if err := d.ask(Op{Kind: Rename, Path: from}); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.nodes[from]; n != nil {
		delete(d.nodes, from)
		d.nodes[to] = n
		d.pending = append(d.pending, nameOp{from: from, to: to, n: n})
		return nil
	}
	if !d.dirs[from] {
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	}
	if len(below(d.nodes, to)) > 0 {
		return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrExist}
	}
	moveDir(d.nodes, from, to)
	delete(d.dirs, from)
	d.dirs[to] = true
	d.pending = append(d.pending, nameOp{from: from, to: to})
	return nil
}

// Remove removes a file, or a directory that is empty.
func (d *Disk) Remove(name string) error {
	name = filepath.Clean(name)
	if err := d.ask(Op{Kind: Remove, Path: name}); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dirs[name] && len(below(d.nodes, name)) == 0 {
		delete(d.dirs, name)
		return nil
	}
	if d.nodes[name] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	delete(d.nodes, name)
	d.pending = append(d.pending, nameOp{from: name})
	return nil
}

// RemoveAll removes everything at and below name.
func (d *Disk) RemoveAll(name string) error {
	name = filepath.Clean(name)
	if err := d.ask(Op{Kind: Remove, Path: name}); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, path := range below(d.nodes, name) {
		delete(d.nodes, path)
		d.pending = append(d.pending, nameOp{from: path})
	}
	if d.nodes[name] != nil {
		delete(d.nodes, name)
		d.pending = append(d.pending, nameOp{from: name})
	}
	delete(d.dirs, name)
	return nil
}

// MkdirAll makes a directory, durable at once: nothing here depends on that.
func (d *Disk) MkdirAll(name string, _ os.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name = filepath.Clean(name); !d.dirs[name] && name != filepath.Dir(name); name = filepath.Dir(name) {
		d.dirs[name] = true
	}
	return nil
}

// List returns the names directly in dir.
func (d *Disk) List(dir string) ([]string, error) {
	dir = filepath.Clean(dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	paths := below(d.nodes, dir)
	if len(paths) == 0 && !d.dirs[dir] {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: fs.ErrNotExist}
	}
	var names []string
	for _, path := range paths {
		if filepath.Dir(path) == dir {
			names = append(names, filepath.Base(path))
		}
	}
	return names, nil
}

// SyncDir makes all name changes durable up to the last one in dir: file systems keep their order.
func (d *Disk) SyncDir(dir string) error {
	dir = filepath.Clean(dir)
	if err := d.ask(Op{Kind: SyncDir, Path: dir}); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncs++
	upTo := 0
	for i, op := range d.pending {
		if filepath.Dir(op.from) == dir || filepath.Dir(op.to) == dir {
			upTo = i + 1
		}
	}
	for _, op := range d.pending[:upTo] {
		op.apply(d.durable)
	}
	d.pending = append([]nameOp{}, d.pending[upTo:]...)
	return nil
}

func (op nameOp) apply(names map[string]*node) {
	if op.n == nil && op.to != "" {
		moveDir(names, op.from, op.to)
		return
	}
	delete(names, op.from)
	if op.to != "" {
		names[op.to] = op.n
	}
}

// below returns the paths under dir, sorted.
func below(names map[string]*node, dir string) []string {
	var paths []string
	for path := range names {
		if strings.HasPrefix(path, dir+string(filepath.Separator)) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

func moveDir(names map[string]*node, from, to string) {
	for _, path := range below(names, from) {
		names[to+strings.TrimPrefix(path, from)] = names[path]
		delete(names, path)
	}
}

// handle is an open file.
type handle struct {
	disk *Disk
	node *node
	path string
	done bool
}

func (h *handle) begin(op Op) error {
	op.Path = h.path
	if err := h.disk.ask(op); err != nil {
		return err
	}
	h.disk.mu.Lock()
	if h.done {
		h.disk.mu.Unlock()
		return &fs.PathError{Op: "use", Path: h.path, Err: fs.ErrClosed}
	}
	return nil // with mu held
}

func (h *handle) ReadAt(p []byte, off int64) (int, error) {
	if err := h.begin(Op{Kind: Read, Offset: off, Bytes: len(p)}); err != nil {
		return 0, err
	}
	defer h.disk.mu.Unlock()
	if off >= int64(len(h.node.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.node.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(p []byte, off int64) (int, error) {
	err := h.begin(Op{Kind: Write, Offset: off, Bytes: len(p)})
	if err != nil {
		var short Short
		if !asShort(err, &short) {
			return 0, err
		}
		p = p[:short.Bytes]
		h.disk.mu.Lock()
	}
	defer h.disk.mu.Unlock()
	h.disk.writes++
	h.node.write(p, off)
	return len(p), err
}

func (h *handle) Size() (int64, error) {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	return int64(len(h.node.data)), nil
}

func (h *handle) Truncate(size int64) error {
	if err := h.begin(Op{Kind: Truncate, Offset: size}); err != nil {
		return err
	}
	defer h.disk.mu.Unlock()
	h.node.resize(size)
	return nil
}

func (h *handle) Allocate(size int64) error {
	if err := h.begin(Op{Kind: Allocate, Offset: size}); err != nil {
		return err
	}
	defer h.disk.mu.Unlock()
	if size > int64(len(h.node.data)) {
		h.node.resize(size)
	}
	return nil
}

func (h *handle) Sync() error {
	if err := h.begin(Op{Kind: Sync}); err != nil {
		h.disk.mu.Lock()
		h.node.changes = nil // the pages count as clean now, and never reach the disk
		h.disk.mu.Unlock()
		return err
	}
	defer h.disk.mu.Unlock()
	h.disk.syncs++
	for _, c := range h.node.changes {
		h.node.stable = c.apply(h.node.stable)
	}
	h.node.changes = nil
	return nil
}

func (h *handle) Lock() error {
	if err := h.begin(Op{Kind: Lock}); err != nil {
		return err
	}
	defer h.disk.mu.Unlock()
	if h.node.locked != nil && h.node.locked != h {
		return fmt.Errorf("lock %s: %w", h.path, wal.ErrLocked)
	}
	h.node.locked = h
	return nil
}

func (h *handle) Close() error {
	h.disk.mu.Lock()
	defer h.disk.mu.Unlock()
	if h.done {
		return fs.ErrClosed
	}
	h.done = true
	if h.node.locked == h {
		h.node.locked = nil
	}
	return nil
}
