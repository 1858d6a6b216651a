package runtime

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"sluice/stages/apply/backend"
	"sluice/stages/persist/snap"
	"sluice/stages/persist/wal"
)

// boot is what the data directory holds: the database, the log and whose they are.
type boot struct {
	backend  *backend.Backend
	snap     *snap.Dir
	wal      *wal.WAL
	local    uint64 // member id
	cluster  uint64
	index    uint64 // of the snapshot that the log stands on
	term     uint64 // its term
	hard     wal.HardState
	entries  []*raftpb.Entry // behind index
	existing bool            // the log was there before this start
}

// open brings the data directory up, founding a cluster where there is no log yet.
//
// Rule: contract/disk-and-peer.md section 5.
func (c *Config) open(metrics backend.Metrics, meters meters) (_ *boot, err error) {
	b := &boot{}
	defer func() {
		if err != nil {
			b.abandon()
		}
	}()
	if err := c.makeDirs(); err != nil {
		return nil, err
	}
	b.snap = snap.Open(snap.Config{
		Disk: c.Disk, Path: c.snapDir(), Log: c.Logger.Named("snap"), UnsafeNoFsync: c.UnsafeNoFsync, Clock: meters.clock,
	})
	if _, err := b.snap.CleanUp(); err != nil {
		return nil, err
	}
	if b.backend, err = c.openBackend(metrics, meters); err != nil {
		return nil, err
	}
	if wal.Exists(c.disk(), c.walDir()) {
		err = c.reopen(b, metrics, meters)
	} else {
		err = c.create(b)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// abandon gives up what open has opened so far.
func (b *boot) abandon() {
	if b.wal != nil {
		b.wal.Abandon()
	}
	if b.backend != nil {
		_ = b.backend.Close() // nothing was written: the first error is the one to tell
	}
}

func (c *Config) disk() wal.FS {
	if c.Disk == nil {
		return wal.Disk{}
	}
	return c.Disk
}

func (c *Config) makeDirs() error {
	for _, dir := range []string{c.DataDir, c.memberDir(), c.snapDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make data directory %s: %w", dir, err)
		}
		probe := filepath.Join(dir, ".touch")
		if err := os.WriteFile(probe, nil, 0o600); err != nil {
			return fmt.Errorf("cannot write to data directory: %w", err)
		}
		if err := os.Remove(probe); err != nil {
			return fmt.Errorf("cannot write to data directory: %w", err)
		}
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm() != 0o700 {
			c.Logger.Warn("check file permission", zap.String("error", fmt.Sprintf(
				"directory %q exists, but the permission is %q. The recommended permission is %q to prevent possible unprivileged access to the data",
				dir, info.Mode(), os.ModeDir|0o700)))
		}
	}
	return nil
}

func (c *Config) openBackend(metrics backend.Metrics, meters meters) (*backend.Backend, error) {
	return backend.Open(backend.Config{
		Path: c.dbPath(), QuotaBytes: c.QuotaBytes, MappingBytes: c.MappingBytes,
		BufferBytesMax: c.BufferBytes,
		FreelistType:   c.FreelistType, UnsafeNoFsync: c.UnsafeNoFsync, Mlock: c.Mlock,
		BatchInterval: c.BatchInterval, BatchLimit: c.BatchLimit, DefragBytes: c.DefragBytes,
		Capacity: c.Mailboxes.Backend, Logger: c.Logger.Named("backend"), Metrics: metrics, Meter: meters.backend,
	})
}

func (c *Config) walConfig(meters meters) wal.Config {
	return wal.Config{
		Disk: c.Disk, Dir: c.walDir(), Log: c.Logger.Named("wal"), Clock: meters.clock, UnsafeNoFsync: c.UnsafeNoFsync,
		SegmentBytes: c.SegmentBytes,
	}
}

// create founds a cluster: the log begins with the conf changes of its members, committed.
func (c *Config) create(b *boot) error {
	if ci, _ := b.backend.ConsistentIndex(); ci > 0 {
		return fmt.Errorf("database %s has applied entry %d, but there is no log in %s: "+
			"put the log back beside it, or remove the database", c.dbPath(), ci, c.walDir())
	}
	f, err := c.found()
	if err != nil {
		return err
	}
	w, err := wal.Create(c.walConfig(meters{}), wal.Metadata{NodeID: f.local, ClusterID: f.cluster})
	if err != nil {
		return err
	}
	b.wal, b.local, b.cluster = w, f.local, f.cluster
	return b.begin(f)
}

// begin writes the founding conf changes.
func (b *boot) begin(f founding) error {
	b.entries = f.entries()
	b.hard = wal.HardState{Term: 1, Commit: uint64(len(b.entries))}
	for _, e := range b.entries {
		b.wal.AppendEntry(e)
	}
	b.wal.AppendState(b.hard)
	if _, err := b.wal.Flush(true); err != nil {
		return fmt.Errorf("found the cluster: %w", err)
	}
	return nil
}

// reopen reads the log behind the newest snapshot record that it vouches for.
func (c *Config) reopen(b *boot, metrics backend.Metrics, meters meters) error {
	b.existing = true
	snapshots, err := wal.ValidSnapshots(c.disk(), c.walDir(), c.Logger)
	if err != nil {
		return err
	}
	at := wal.Snapshot{}
	if len(snapshots) > 0 {
		at = snapshots[len(snapshots)-1]
	}
	if err := c.recoverDatabase(b, at, metrics, meters); err != nil {
		return err
	}
	w, contents, err := wal.Open(c.walConfig(meters), at)
	if err != nil {
		return err
	}
	b.wal, b.hard, b.entries = w, contents.HardState, contents.Entries
	b.local, b.cluster = contents.Metadata.NodeID, contents.Metadata.ClusterID
	b.index, b.term = at.Index, at.Term
	if r := contents.Repaired; r != nil {
		c.Logger.Info("repaired WAL", zap.String("path", r.Path), zap.String("broken-copy", r.Broken),
			zap.Int64("cut-at", r.Offset), zap.NamedError("cause", r.Cause))
	}
	if len(b.entries) == 0 && b.index == 0 && b.hard.IsZero() {
		// The process ended between making the log and founding the cluster in it.
		f, err := c.found()
		if err != nil {
			return err
		}
		if f.local != b.local || f.cluster != b.cluster {
			return fmt.Errorf("the log in %s was made for member %x of cluster %x, the initial cluster gives %x of %x",
				c.walDir(), b.local, b.cluster, f.local, f.cluster)
		}
		return b.begin(f)
	}
	return nil
}

// recoverDatabase puts the database of a received snapshot in place when the log is ahead of the one here.
func (c *Config) recoverDatabase(b *boot, at wal.Snapshot, metrics backend.Metrics, meters meters) error {
	ci, _ := b.backend.ConsistentIndex()
	if at.Index > ci {
		path := b.snap.DBPath(at.Index)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("failed to recover v3 backend from snapshot: database %s ends at entry %d, "+
				"the log begins at %d, and %s: snap: snapshot file doesn't exist", c.dbPath(), ci, at.Index, path)
		}
		c.Logger.Info("Recovering from snapshot backend", zap.String("path", path), zap.Uint64("index", at.Index))
		if err := b.backend.Close(); err != nil {
			return err
		}
		b.backend = nil
		if err := os.Rename(path, c.dbPath()); err != nil {
			return fmt.Errorf("put the snapshot's database in place: %w", err)
		}
		var err error
		if b.backend, err = c.openBackend(metrics, meters); err != nil {
			return err
		}
		ci, _ = b.backend.ConsistentIndex()
	}
	if ci < at.Index && ci != 0 {
		return fmt.Errorf("database file (%s index %d) does not match with snapshot (index %d)", c.dbPath(), ci, at.Index)
	}
	return nil
}

// last is the index of the last entry in the log.
func (b *boot) last() uint64 { return b.index + uint64(len(b.entries)) }

// catchUpLog makes the log begin at the database's consistent index when it ends below it, as after a kill
// of a member that applies entries while they are being written. The database holds their effects, so it is
// to the log what a received snapshot is. Going on without this would give their indexes to new entries,
// which apply would then skip.
func (b *boot) catchUpLog(conf *raftpb.ConfState, log *zap.Logger) error {
	ci, term := b.backend.ConsistentIndex()
	if ci <= b.last() {
		return nil
	}
	log.Warn("the database is ahead of the log; the log goes on behind it",
		zap.Uint64("consistent-index", ci), zap.Uint64("last-log-index", b.last()))
	if term == 0 {
		return fmt.Errorf("database has applied entry %d, the log ends at %d, and no term is stored", ci, b.last())
	}
	b.hard.Term, b.hard.Commit = max(b.hard.Term, term), ci
	b.wal.AppendSnapshot(wal.Snapshot{Index: ci, Term: term, ConfState: conf})
	b.wal.AppendState(b.hard)
	if _, err := b.wal.Flush(true); err != nil {
		return fmt.Errorf("record that the log begins at %d: %w", ci, err)
	}
	b.index, b.term, b.entries = ci, term, nil
	return nil
}

func encodeConfChange(cc *raftpb.ConfChange) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(cc)
	if err != nil {
		panic("runtime: encode conf change: " + err.Error()) // it has no field that can fail
	}
	return data
}
