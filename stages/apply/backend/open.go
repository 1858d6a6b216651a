package backend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap"

	"sluice/mailbox"
	"sluice/tracing"
)

// The newest storage version that this program reads (contract/disk-and-peer.md 6.3).
const storageMajor, storageMinor = 3, 7

var metaStorageVersion = []byte("storageVersion")

// Open opens the database, or creates it, and waits for its lock if another process has it. It refuses a
// file that is not a whole database of a known version, and changes nothing in it then. Run must be running
// before Flush, Hash, Snapshot, Defragment or Install are called; Acquire works at once.
func Open(cfg Config) (*Backend, error) {
	cfg.fill()
	start := time.Now()
	// A broken page makes bbolt panic on a goroutine of its own, past any recover: the log names the file.
	cfg.Logger.Info("opening backend db", zap.String("path", cfg.Path))
	f, index, term, err := openWhole(&cfg, cfg.Path)
	if err != nil {
		return nil, err
	}
	cfg.Logger.Info("opened backend db", zap.String("path", cfg.Path), zap.Duration("took", time.Since(start)))
	if err := removeTemps(cfg.Path); err != nil {
		f.leave()
		return nil, err
	}
	if cfg.DefragBytes > 0 {
		if f, err = defragmentAtOpen(&cfg, f); err != nil {
			return nil, err
		}
	}
	t, err := f.begin(index, term)
	if err != nil {
		f.leave()
		return nil, fmt.Errorf("open database %s: %w", cfg.Path, err)
	}
	b := &Backend{
		cfg: cfg, log: cfg.Logger,
		in:           mailbox.New[message](mailbox.Config{Name: "backend", Capacity: cfg.Capacity}),
		seals:        mailbox.New[*buffer](mailbox.Config{Name: "backend sealed", Capacity: sealedMax}),
		promiseAfter: promiseAfter,
		slots:        make(chan struct{}, sealedMax),
		wanted:       make(chan struct{}, 1),
		changed:      make(chan struct{}),
		jobs:         make(chan *defragment),
		ended:        make(chan struct{}),
		current:      newBuffer(0),
		last:         Seal{Index: index, Term: term},
		index:        index, term: term,
		file: f, flushedIndex: index, flushedTerm: term,
		durable: Seal{Index: index, Term: term},
		base:    newBase(),
	}
	b.send = b.in.Sender(mailbox.Wait)
	b.base.fill(t)
	total, inUse := f.pages(t.tx)
	b.total.Store(total)
	b.inUse.Store(inUse)
	return b, nil
}

// fill sets what was left open.
func (cfg *Config) fill() {
	if cfg.BatchInterval <= 0 {
		cfg.BatchInterval = batchInterval
	}
	if cfg.BatchLimit <= 0 {
		cfg.BatchLimit = batchLimit
	}
	if cfg.BufferBytesMax <= 0 {
		cfg.BufferBytesMax = bufferBytesMax
	}
	if cfg.Capacity <= 0 {
		cfg.Capacity = capacity
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	m := &cfg.Metrics
	for _, o := range []*tracing.Observer{&m.CommitSeconds, &m.RebalanceSeconds, &m.SpillSeconds,
		&m.WriteSeconds, &m.DefragSeconds, &m.SnapshotSeconds} {
		if *o == nil {
			*o = tracing.Nop
		}
	}
	if m.DefragInflight == nil {
		m.DefragInflight = tracing.Nop
	}
}

func (m *Metrics) observe(commit time.Duration, stats *bolt.TxStats) {
	m.CommitSeconds.Observe(commit.Seconds())
	m.RebalanceSeconds.Observe(stats.GetRebalanceTime().Seconds())
	m.SpillSeconds.Observe(stats.GetSpillTime().Seconds())
	m.WriteSeconds.Observe(stats.GetWriteTime().Seconds())
}

// openWhole opens a database, checks what it says about itself, and creates the buckets it lacks.
func openWhole(cfg *Config, path string) (f *file, index, term uint64, err error) {
	f, err = openFile(cfg, path)
	if err != nil {
		return nil, 0, 0, err
	}
	defer func() {
		if err != nil {
			f.leave()
			err = fmt.Errorf("open database %s: %w", path, err)
		}
	}()
	missing := false
	err = f.view(func(tx *bolt.Tx) (err error) {
		if index, term, err = readMeta(tx); err != nil {
			return err
		}
		for _, name := range bucketNames {
			missing = missing || tx.Bucket([]byte(name)) == nil
		}
		return nil
	})
	if err != nil || !missing { // nothing to create: a start writes nothing, so that it works on a full disk
		return f, index, term, err
	}
	_, err = f.update(func(tx *bolt.Tx) error {
		for _, name := range bucketNames {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return fmt.Errorf("create bucket %q: %w", name, err)
			}
		}
		return nil
	})
	return f, index, term, err
}

// view runs fn in a read transaction, with a panic of bbolt as an error.
func (f *file) view(fn func(tx *bolt.Tx) error) (err error) {
	tx, err := f.db.Begin(false)
	if err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("bbolt: %v", p)
		}
		err = errors.Join(err, tx.Rollback())
	}()
	return fn(tx)
}

// readMeta returns the consistent index and term, 0 when absent, and refuses a storage version that is
// malformed or newer than this program.
func readMeta(tx *bolt.Tx) (index, term uint64, err error) {
	meta := tx.Bucket([]byte(Meta.String()))
	if meta == nil {
		return 0, 0, nil
	}
	if index, err = number(meta, metaIndex); err != nil {
		return 0, 0, err
	}
	if term, err = number(meta, metaTerm); err != nil {
		return 0, 0, err
	}
	if v := meta.Get(metaStorageVersion); v != nil {
		err = checkStorageVersion(string(v))
	}
	return index, term, err
}

func number(meta *bolt.Bucket, key []byte) (uint64, error) {
	switch v := meta.Get(key); len(v) {
	case 0:
		return 0, nil
	case 8:
		return binary.BigEndian.Uint64(v), nil
	default:
		return 0, fmt.Errorf("%s of %d bytes, want 8", key, len(v))
	}
}

func checkStorageVersion(v string) error {
	var n [3]int
	parts := strings.Split(v, ".")
	if len(parts) != len(n) {
		return fmt.Errorf("malformed storage version %q", v)
	}
	for i, p := range parts {
		var err error
		if n[i], err = strconv.Atoi(p); err != nil || n[i] < 0 {
			return fmt.Errorf("malformed storage version %q", v)
		}
	}
	if n[0] > storageMajor || n[0] == storageMajor && n[1] > storageMinor {
		return fmt.Errorf("version %q is not supported", v)
	}
	return nil
}

// defragmentAtOpen rewrites the file if that frees at least the configured threshold. It takes the file
// over, and closes it on an error.
func defragmentAtOpen(cfg *Config, f *file) (*file, error) {
	start := time.Now()
	var total, inUse int64
	err := f.view(func(tx *bolt.Tx) error {
		total, inUse = f.pages(tx)
		return nil
	})
	if err == nil && total-inUse < cfg.DefragBytes {
		cfg.Logger.Info("Skipping defragmentation", append(sizeFields(cfg.Path, total, inUse),
			zap.Int64("bootstrap-defrag-threshold-bytes", cfg.DefragBytes),
			zap.String("bootstrap-defrag-threshold", humanBytes(cfg.DefragBytes)))...)
		return f, nil
	}
	var c *copier
	if err == nil {
		cfg.Logger.Info("defragmenting", sizeFields(cfg.Path, total, inUse)...)
		c, err = copyAtOpen(cfg, f, total)
	}
	f.leave()
	if err != nil {
		return nil, fmt.Errorf("defragment %s: %w", cfg.Path, err)
	}
	_ = c.dst.view(func(tx *bolt.Tx) error {
		newTotal, newInUse := c.dst.pages(tx)
		cfg.Logger.Info("finished defragmenting directory", append(sizeFields(cfg.Path, newTotal, newInUse),
			zap.Int64("current-db-size-bytes-diff", newTotal-total),
			zap.Int64("current-db-size-in-use-bytes-diff", newInUse-inUse),
			zap.Duration("took", time.Since(start)))...)
		return nil
	})
	return c.dst, nil
}

func copyAtOpen(cfg *Config, f *file, size int64) (*copier, error) {
	dst, err := openTemp(cfg, size)
	if err != nil {
		return nil, err
	}
	c := &copier{dst: dst}
	err = f.view(func(tx *bolt.Tx) error {
		for !c.done {
			if err := c.copy(tx, copyKeysMax, copyBytesMax); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = os.Rename(dst.path, cfg.Path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(cfg.Path))
	}
	if err != nil {
		dst.leave()
		return nil, errors.Join(err, removeTemp(dst.path))
	}
	return c, nil
}
