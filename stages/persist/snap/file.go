package snap

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sluice/stages/persist/wal"
	"sluice/tracing"
)

const (
	// Suffix and SuffixDB are the names' ends of snapshot files and of database copies.
	Suffix   = ".snap"
	SuffixDB = ".snap.db"

	suffixBroken = ".broken"
	fileMode     = 0o666 // before the umask, as etcd has it; the databases are 0600
)

var (
	// ErrEmpty: the file, or the snapshot in it, is empty.
	ErrEmpty = errors.New("snap: empty snapshot")
	// ErrCRCMismatch: the file's checksum is missing or does not fit.
	ErrCRCMismatch = errors.New("snap: crc mismatch")
	// ErrNotFound: there is no valid snapshot file.
	ErrNotFound = errors.New("snap: no available snapshot")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// Dir is the snapshot directory.
type Dir struct {
	disk    wal.FS
	path    string
	log     *zap.Logger
	noFsync bool
	clock   func() int64
}

// Config is how a directory is opened.
type Config struct {
	Disk          wal.FS // nil is the real one
	Path          string // an existing directory
	Log           *zap.Logger
	UnsafeNoFsync bool
	Clock         func() int64 // monotonic nanoseconds, to time syncs; nil is tracing.Clock
}

// Open returns the snapshot directory.
func Open(c Config) *Dir {
	if c.Disk == nil {
		c.Disk = wal.Disk{}
	}
	if c.Log == nil {
		c.Log = zap.NewNop()
	}
	if c.Clock == nil {
		c.Clock = tracing.Clock
	}
	return &Dir{disk: c.Disk, path: filepath.Clean(c.Path), log: c.Log, noFsync: c.UnsafeNoFsync, clock: c.Clock}
}

// Path returns the directory's path.
func (d *Dir) Path() string { return d.path }

// Name returns the file name of the snapshot at term and index.
func Name(term, index uint64) string { return fmt.Sprintf("%016x-%016x%s", term, index, Suffix) }

// DBPath returns the path of the database copy that an incoming snapshot at index brings.
func (d *Dir) DBPath(index uint64) string {
	return filepath.Join(d.path, fmt.Sprintf("%016x%s", index, SuffixDB))
}

// parseDB returns the index in a database copy's name.
func parseDB(name string) (index uint64, ok bool) {
	if _, err := fmt.Sscanf(name, "%016x", &index); err != nil {
		return 0, false
	}
	return index, fmt.Sprintf("%016x%s", index, SuffixDB) == name
}

// Save writes s to its file and makes it durable, and returns how long the fsync took; the file is removed
// if that fails. There is no temporary name: a half-written file has no valid checksum, and nothing refers to
// it before the log's record.
func (d *Dir) Save(s *raftpb.Snapshot) (fsync time.Duration, err error) {
	meta := s.GetMetadata()
	path := filepath.Join(d.path, Name(meta.GetTerm(), meta.GetIndex()))
	f, err := d.disk.Open(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return 0, fmt.Errorf("save snapshot: %w", err)
	}
	_, err = f.WriteAt(Encode(s), 0)
	start := d.clock()
	if err == nil && !d.noFsync {
		err = f.Sync()
	}
	fsync = time.Duration(d.clock() - start)
	f.Close()
	if err != nil {
		d.disk.Remove(path)
		return 0, fmt.Errorf("save snapshot %s: %w", path, err)
	}
	if d.noFsync {
		return fsync, nil
	}
	if err := d.disk.SyncDir(d.path); err != nil {
		return 0, fmt.Errorf("save snapshot: sync %s: %w", d.path, err)
	}
	return fsync, nil
}

// Encode returns the content of s's file.
func Encode(s *raftpb.Snapshot) []byte {
	body := encodeSnapshot(s)
	b := make([]byte, 0, len(body)+20)
	b = protowire.AppendVarint(protowire.AppendTag(b, 1, protowire.VarintType),
		uint64(crc32.Checksum(body, castagnoli)))
	return protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), body)
}

// encodeSnapshot writes raftpb.Snapshot with the field order and the presence that etcd's files have.
func encodeSnapshot(s *raftpb.Snapshot) []byte {
	m := s.GetMetadata()
	meta := protowire.AppendTag(nil, 1, protowire.BytesType)
	meta = protowire.AppendBytes(meta, wal.AppendConfState(nil, m.GetConfState()))
	meta = protowire.AppendVarint(protowire.AppendTag(meta, 2, protowire.VarintType), m.GetIndex())
	meta = protowire.AppendVarint(protowire.AppendTag(meta, 3, protowire.VarintType), m.GetTerm())
	b := make([]byte, 0, len(s.GetData())+len(meta)+24)
	if s.GetData() != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), s.GetData())
	}
	return protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), meta)
}

// Decode reads the content of a snapshot file. ErrEmpty and ErrCRCMismatch are files that a crash or a bad
// disk left.
func Decode(b []byte) (*raftpb.Snapshot, error) {
	if len(b) == 0 {
		return nil, ErrEmpty
	}
	var crc uint32
	var body []byte
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("decode snapshot file: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return nil, fmt.Errorf("decode snapshot file: %w", protowire.ParseError(n))
		}
		switch {
		case num == 1 && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(b)
			crc = uint32(v)
		case num == 2 && typ == protowire.BytesType:
			body, _ = protowire.ConsumeBytes(b)
		}
		b = b[n:]
	}
	if len(body) == 0 || crc == 0 {
		return nil, ErrEmpty
	}
	if sum := crc32.Checksum(body, castagnoli); sum != crc {
		return nil, fmt.Errorf("%w: expected %x, computed %x", ErrCRCMismatch, crc, sum)
	}
	s := &raftpb.Snapshot{}
	if err := proto.Unmarshal(body, s); err != nil {
		return nil, fmt.Errorf("decode snapshot: %w", err)
	}
	return s, nil
}

// Read reads one file of the directory.
func (d *Dir) Read(name string) (*raftpb.Snapshot, error) {
	path := filepath.Join(d.path, name)
	f, err := d.disk.Open(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("read snapshot: %w", err)
	}
	b := make([]byte, size)
	if n, err := f.ReadAt(b, 0); n < len(b) || (err != nil && !errors.Is(err, io.EOF)) {
		return nil, fmt.Errorf("read snapshot %s: %w", path, err)
	}
	s, err := Decode(b)
	if err != nil {
		return nil, fmt.Errorf("read snapshot %s: %w", path, err)
	}
	return s, nil
}

// Newest returns the newest valid snapshot; ErrNotFound when there is none. Files that are no valid snapshot
// are put aside under the suffix .broken, with a warning.
func (d *Dir) Newest() (*raftpb.Snapshot, error) {
	names, err := d.disk.List(d.path)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	for i := len(names) - 1; i >= 0; i-- {
		name := names[i]
		if !strings.HasSuffix(name, Suffix) {
			continue
		}
		s, err := d.Read(name)
		if err == nil {
			return s, nil
		}
		if errors.Is(err, fs.ErrNotExist) { // purged meanwhile
			continue
		}
		path := filepath.Join(d.path, name)
		d.log.Warn("put a broken snapshot file aside", zap.String("path", path+suffixBroken), zap.Error(err))
		if err := d.disk.Rename(path, path+suffixBroken); err != nil {
			return nil, fmt.Errorf("put snapshot aside: %w", err)
		}
	}
	return nil, ErrNotFound
}

// CleanUp removes what a crash has left at boot: half-received database copies (tmp*) and targets of a
// defragmentation (db.tmp*). It returns the removed names.
func (d *Dir) CleanUp() ([]string, error) {
	return d.remove(func(name string) bool {
		return strings.HasPrefix(name, "tmp") || strings.HasPrefix(name, "db.tmp")
	})
}

// ReleaseDB removes the database copies below index, once a disk snapshot at index is durable.
func (d *Dir) ReleaseDB(index uint64) ([]string, error) {
	return d.remove(func(name string) bool {
		at, ok := parseDB(name)
		return ok && at < index
	})
}

func (d *Dir) remove(doomed func(name string) bool) ([]string, error) {
	names, err := d.disk.List(d.path)
	if err != nil {
		return nil, fmt.Errorf("list snapshot directory: %w", err)
	}
	var removed []string
	for _, name := range names {
		if !doomed(name) {
			continue
		}
		err := d.disk.Remove(filepath.Join(d.path, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, fmt.Errorf("clean up: %w", err)
		}
		removed = append(removed, name)
	}
	return removed, nil
}

// Purge keeps the newest snapshots and the newest database copies, each at most keep; 0 keeps all.
func (d *Dir) Purge(keep uint) error {
	for _, suffix := range []string{SuffixDB, Suffix} {
		if _, err := wal.Purge(d.disk, d.path, suffix, keep, false, d.log); err != nil {
			return fmt.Errorf("purge %s: %w", suffix, err)
		}
	}
	return nil
}
