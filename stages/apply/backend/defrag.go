package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
)

// ErrSuperseded is returned by Defragment when an Install has replaced the file that it was copying.
var ErrSuperseded = errors.New("backend: database was replaced during defragmentation")

// defragment is a request to the worker that Run keeps for it.
type defragment struct{ done chan error }

type roundReply struct {
	base    *base // held for the worker
	journal journal
	err     error
}

// Defragment rewrites the file without its free pages while reads and writes go on, and returns when the new
// file is in place. One runs at a time, others wait their turn. When ctx ends the caller stops waiting; the
// work goes on. On an error the old file stays in place.
//
// The file's name always denotes a whole database that this process has locked: the copy has another name
// until it is complete and durable, it is locked from its creation, and rename replaces in one step. The old
// file is closed with its last snapshot.
func (b *Backend) Defragment(ctx context.Context) error {
	d := &defragment{make(chan error, 1)}
	select {
	case b.jobs <- d:
	case <-ctx.Done():
		return ctx.Err()
	case <-b.ended:
		return b.failure()
	}
	select {
	case err := <-d.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// defragmenter is the worker.
func (b *Backend) defragmenter(ctx context.Context) {
	for {
		select {
		case d := <-b.jobs:
			d.done <- b.defragment(ctx)
		case <-b.ended:
			return
		}
	}
}

func (b *Backend) defragment(ctx context.Context) error {
	start := time.Now()
	b.cfg.Metrics.DefragInflight.Set(1)
	defer b.cfg.Metrics.DefragInflight.Set(0)
	if b.pending.Load() { // what was just deleted should not be copied
		if err := b.demand(ctx); err != nil {
			return err
		}
	}
	flushed := make(chan error, 1)
	if err := b.ask(ctx, barrier{flushed}, flushed); err != nil {
		return err
	}
	total, inUse := b.Size()
	b.log.Info("defragmenting", sizeFields(b.cfg.Path, total, inUse)...)
	f, err := openTemp(&b.cfg, total)
	if err != nil {
		return fmt.Errorf("defragment %s: %w", b.cfg.Path, err)
	}
	c := &copier{dst: f}
	if err = b.copyRounds(ctx, c); err == nil {
		// Without ctx: as long as the writer may be at work on the copy, it must not be closed here.
		done := make(chan error, 1)
		err = b.ask(context.WithoutCancel(ctx), finish{c, done}, done)
	}
	if err != nil {
		// Whether it is still a temporary file or, when Run ended just then, already the database: the
		// temporary name is all that is removed.
		f.leave()
		return errors.Join(fmt.Errorf("defragment %s: %w", b.cfg.Path, err), b.abandon(ctx), removeTemp(f.path))
	}
	took := time.Since(start)
	b.cfg.Metrics.DefragSeconds.Observe(took.Seconds())
	b.finished(total, inUse, took)
	return nil
}

// copyRounds runs c until it has copied everything.
func (b *Backend) copyRounds(ctx context.Context, c *copier) error {
	for first := true; !c.done; first = false {
		r, err := b.askRound(ctx, first)
		if err != nil {
			return err
		}
		err = c.replay(r.journal.set)
		if err == nil {
			keys, size := max(copyKeysMax, 2*r.journal.ops), max(copyBytesMax, 2*r.journal.bytes)
			err = c.copy(r.base.wait().tx, keys, size)
		}
		r.base.release()
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) askRound(ctx context.Context, first bool) (roundReply, error) {
	reply := make(chan roundReply, 1)
	if err := b.send.Send(ctx, round{first, reply}); err != nil {
		return roundReply{}, b.because(err)
	}
	select {
	case r := <-reply:
		return r, r.err
	case <-b.ended: // Run ends with ctx as well, so this is all there is to wait for
		select {
		case r := <-reply:
			return r, r.err
		default:
			return roundReply{}, b.failure()
		}
	}
}

func (b *Backend) abandon(ctx context.Context) error {
	if err := b.send.Send(ctx, abandon{}); err != nil && b.failure() == nil {
		return err
	}
	return nil
}

// nextRound answers a round: the last commit, and what was committed since the last round. Run calls it.
func (b *Backend) nextRound(first bool) roundReply {
	if first {
		b.copying = &journal{}
	}
	if b.copying == nil {
		return roundReply{err: ErrSuperseded}
	}
	taken := b.copying.take()
	b.freeHeld()
	return roundReply{base: b.newest(), journal: taken}
}

// endCopying forgets the running defragmentation. Run calls it.
func (b *Backend) endCopying() {
	b.copying = nil
	b.freeHeld()
}

// finish completes the copy and puts it in place. Run calls it; its error ends Run.
func (b *Backend) finish(m finish) error {
	if b.copying == nil {
		m.done <- ErrSuperseded
		return nil
	}
	rest := b.copying.take()
	b.endCopying()
	err := m.copy.replay(rest.set)
	if err == nil {
		err = os.Rename(m.copy.dst.path, b.cfg.Path)
	}
	if err != nil {
		m.done <- err // the old file is as it was
		return nil
	}
	err = b.swap(m.copy.dst, b.flushedIndex, b.flushedTerm)
	m.done <- err
	return err
}

// swap makes f, which was just renamed to the database's name, the file that the writer works on. Run
// calls it; its error ends Run, since which file a crash would leave is not known.
func (b *Backend) swap(f *file, index, term uint64) error {
	if err := syncDir(filepath.Dir(b.cfg.Path)); err != nil {
		return fmt.Errorf("replace %s: %w", b.cfg.Path, err)
	}
	t, err := f.begin(index, term)
	if err != nil {
		return fmt.Errorf("replace %s: %w", b.cfg.Path, err)
	}
	old := b.file
	b.file = f
	f.mapped = max(f.mapped, mappingBytes(t.tx.Size()))
	b.publish(t, 0)
	old.leave()
	return nil
}

// finished logs what a defragmentation has done.
func (b *Backend) finished(total, inUse int64, took time.Duration) {
	newTotal, newInUse := b.Size()
	b.log.Info("finished defragmenting directory", append(sizeFields(b.cfg.Path, newTotal, newInUse),
		zap.Int64("current-db-size-bytes-diff", newTotal-total),
		zap.Int64("current-db-size-in-use-bytes-diff", newInUse-inUse),
		zap.Duration("took", took))...)
}

func sizeFields(path string, total, inUse int64) []zap.Field {
	return []zap.Field{
		zap.String("path", path),
		zap.Int64("current-db-size-bytes", total), zap.String("current-db-size", humanBytes(total)),
		zap.Int64("current-db-size-in-use-bytes", inUse), zap.String("current-db-size-in-use", humanBytes(inUse)),
	}
}

// humanBytes writes n as etcd's logs do: 20 kB, 2.1 GB.
func humanBytes(n int64) string {
	const units = "kMGTPE"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/1000, 0
	for f >= 999.5 && i < len(units)-1 {
		f, i = f/1000, i+1
	}
	if f < 9.95 {
		return fmt.Sprintf("%.1f %cB", f, units[i])
	}
	return fmt.Sprintf("%.0f %cB", f, units[i])
}

// openTemp opens a new empty file beside the database, for a copy of a file of size bytes.
func openTemp(cfg *Config, size int64) (*file, error) {
	temp, err := tempFile(cfg.Path)
	if err != nil {
		return nil, err
	}
	f, err := openLocked(cfg, temp, size)
	if err != nil {
		return nil, errors.Join(err, removeTemp(temp))
	}
	return f, nil
}

func removeTemp(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// record notes what a commit has changed, if a defragmentation has to repeat it. Run calls it.
func (b *Backend) record(set []*buffer) {
	if b.copying != nil {
		b.copying.add(set)
	}
}

// free lets apply seal n more buffers. While the journal of a defragmentation is full they are held back:
// else apply could outrun the copy for ever. Run calls it.
func (b *Backend) free(n int) {
	b.heldSlots += n
	if b.copying == nil || b.copying.bytes < journalBytesMax {
		b.freeHeld()
	}
}

func (b *Backend) freeHeld() {
	for ; b.heldSlots > 0; b.heldSlots-- {
		<-b.slots
	}
}
