// Package process builds and runs daemons for measurements and end-to-end tests: Sluice from this tree,
// and the reference (etcd, etcdctl, etcdutl 3.7.3) from the module in bench/oracle. Every process listens
// on loopback only and is killed when its owner ends.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
)

// Tools are the paths of the reference's programs.
type Tools struct{ Etcd, Etcdctl, Etcdutl string }

// oracleVersion names the cache folder: a new version builds anew.
const oracleVersion = "3.7.3"

var (
	oracle = sync.OnceValues(buildOracle)
	sluice = sync.OnceValues(buildSluice)
)

// Oracle returns the reference's programs, building them into the user's cache folder the first time.
// An environment variable SLUICE_ETCD names a folder that already has them.
func Oracle() (Tools, error) { return oracle() }

// Sluice returns the daemon of this tree, built once per process into a temporary folder. An environment
// variable SLUICE_PROGRAM names another program to put in its place: a test that fails for the reference
// too, where the reference is right, is a wrong test.
func Sluice() (string, error) { return sluice() }

// CleanUp removes the daemon that Sluice has built, when nobody will start it any more.
func CleanUp() {
	if dir := built.Load(); dir != nil {
		os.RemoveAll(*dir)
	}
}

// Root returns the top folder of this module's source.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

func buildOracle() (Tools, error) {
	dir := os.Getenv("SLUICE_ETCD")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return Tools{}, fmt.Errorf("find a folder for the reference: %w", err)
		}
		dir = filepath.Join(cache, "sluice-oracle", oracleVersion)
	}
	t := Tools{filepath.Join(dir, "etcd"), filepath.Join(dir, "etcdctl"), filepath.Join(dir, "etcdutl")}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Tools{}, fmt.Errorf("make a folder for the reference: %w", err)
	}
	for path, pkg := range map[string]string{
		t.Etcd:    "go.etcd.io/etcd/" + "server/v3",
		t.Etcdctl: "go.etcd.io/etcd/etcdctl/v3",
		t.Etcdutl: "go.etcd.io/etcd/etcdutl/v3",
	} {
		_, err := os.Stat(path)
		if err == nil {
			continue
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return Tools{}, fmt.Errorf("look for the reference: %w", err)
		}
		// Built aside and renamed, so that two builders at once leave one whole program.
		aside := fmt.Sprintf("%s.%d", path, os.Getpid())
		if err := build(filepath.Join(Root(), "bench", "oracle"), aside, pkg); err != nil {
			return Tools{}, err
		}
		if err := os.Rename(aside, path); err != nil {
			return Tools{}, fmt.Errorf("keep the reference: %w", err)
		}
	}
	return t, nil
}

// built is the folder of the daemon that Sluice has built: written once by buildSluice, read by CleanUp.
var built atomic.Pointer[string]

func buildSluice() (string, error) {
	if program := os.Getenv("SLUICE_PROGRAM"); program != "" {
		return program, nil
	}
	dir, err := os.MkdirTemp("", "sluice-build-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the daemon: %w", err)
	}
	built.Store(&dir)
	path := filepath.Join(dir, "sluice")
	return path, build(Root(), path, "./server")
}

func build(dir, out, pkg string, args ...string) error {
	cmd := exec.Command("go", append(append([]string{"build", "-o", out}, args...), pkg)...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return nil
}
