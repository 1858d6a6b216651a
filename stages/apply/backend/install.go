package backend

import (
	"context"
	"fmt"
	"os"
)

// Install replaces the database by the file at path, a database that came from the leader, and discards what
// was not sealed. Snapshots acquired before go on showing the old state. The file must lie on the same
// file system, durable; it is renamed.
//
// Apply alone calls it, and calls ConsistentIndex afterwards to learn where the new state stands. A running
// defragmentation ends with ErrSuperseded. On an error the old database stays in place.
func (b *Backend) Install(ctx context.Context, path string) error {
	if err := b.Flush(ctx); err != nil { // what is sealed is on its way already
		return err
	}
	b.current = newBuffer(0)
	b.pending.Store(false)
	done := make(chan error, 1)
	if err := b.ask(ctx, install{path, done}, done); err != nil {
		return err
	}
	b.index, b.term = b.Durable()
	b.last = Seal{Index: b.index, Term: b.term}
	return nil
}

// install does Install's work. Run calls it; its error ends Run.
func (b *Backend) install(m install) error {
	var f *file
	var index, term uint64
	_, err := os.Stat(m.path) // opening would create it
	if err == nil {
		f, index, term, err = openWhole(&b.cfg, m.path)
	}
	if err == nil {
		if err = os.Rename(m.path, b.cfg.Path); err != nil {
			f.leave()
		}
	}
	if err != nil {
		m.done <- fmt.Errorf("install %s: %w", m.path, err)
		return nil
	}
	b.endCopying()
	b.flushedIndex, b.flushedTerm = index, term
	err = b.swap(f, index, term)
	m.done <- err
	return err
}
