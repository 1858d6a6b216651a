package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"sluice/server/config"
	"sluice/tracing"
)

// descriptorsEvery is how often the open file descriptors are counted.
const descriptorsEvery = 10 * time.Minute

func goVersion() string { return goruntime.Version() }

// inspect looks at the data directory before anything is opened in it, and says whether a member was there
// before. What does not belong there is told, not touched.
func inspect(c *config.Config, log *zap.Logger) (initialized bool, err error) {
	kind := "empty"
	entries, err := os.ReadDir(c.DataDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("read data directory: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "member":
			kind = "member"
		case "proxy":
			return false, fmt.Errorf("data directory %s was made by a proxy of etcd 2, which is no longer supported", c.DataDir)
		default:
			log.Warn("found invalid file under data directory",
				zap.String("filename", e.Name()), zap.String("data-dir", c.DataDir))
		}
	}
	if kind == "empty" {
		log.Info("Initialize and start etcd server", zap.String("data-dir", c.DataDir), zap.String("dir-type", kind))
	} else {
		log.Info("server has already been initialized", zap.String("data-dir", c.DataDir), zap.String("dir-type", kind))
	}
	walDir := c.WALDir
	if walDir == "" {
		walDir = filepath.Join(c.DataDir, "member", "wal")
	}
	segments, err := filepath.Glob(filepath.Join(walDir, "*.wal"))
	return len(segments) > 0, err
}

// notifyReady tells systemd that the member serves. It does so once, and says so even without systemd, for
// scripts wait for the line.
func notifyReady(log *zap.Logger, socket string) {
	log.Info("notifying init daemon")
	if err := notify(socket, "READY=1"); err != nil {
		log.Error("failed to notify systemd for readiness", zap.Error(err))
		return
	}
	log.Info("successfully notified init daemon")
}

func notify(socket, state string) error {
	if socket == "" {
		return nil
	}
	if after, ok := strings.CutPrefix(socket, "@"); ok {
		socket = "\x00" + after // the abstract name space
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}

// watchDescriptors counts the open file descriptors now and every ten minutes.
func watchDescriptors(ctx context.Context, metrics *tracing.Metrics, log *zap.Logger) {
	ticker := time.NewTicker(descriptorsEvery)
	defer ticker.Stop()
	for {
		used, limit, err := descriptors()
		if err != nil {
			log.Warn("counting file descriptors failed", zap.Error(err))
			return
		}
		metrics.FDUsed.Set(float64(used))
		metrics.FDLimit.Set(float64(limit))
		if used >= limit/5*4 {
			log.Warn("80% of file descriptors are used", zap.Uint64("used", used), zap.Uint64("limit", limit))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func descriptors() (used, limit uint64, err error) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, fmt.Errorf("read the limit: %w", err)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, fmt.Errorf("list /proc/self/fd: %w", err)
	}
	return uint64(len(entries)), r.Cur, nil
}
