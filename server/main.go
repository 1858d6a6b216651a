package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	goruntime "runtime"
	"slices"
	"syscall"

	"go.uber.org/zap"
	"google.golang.org/grpc/grpclog"

	"sluice/runtime"
	"sluice/server/config"
	"sluice/server/logging"
)

// fdLimitMin is the number of file descriptors below which no member starts.
const fdLimitMin = 150

func main() {
	code, received := run(os.Args, os.Environ(), logging.Streams{Stdout: os.Stdout, Stderr: os.Stderr})
	if received == nil || os.Getpid() == 1 { // nobody can signal PID 1 to death
		os.Exit(code)
	}
	// Whoever sent the signal sees in the exit status that it was what ended the process.
	signal.Reset(received)
	if err := syscall.Kill(os.Getpid(), received.(syscall.Signal)); err != nil {
		os.Exit(1)
	}
	select {} // until the signal arrives
}

// run is the process between its arguments and its exit code; received is the signal that ended it, if one
// did.
func run(args, environ []string, std logging.Streams) (code int, received os.Signal) {
	out := config.Parse(config.Input{
		Args: args, Environ: environ, ReadFile: os.ReadFile, DefaultHost: config.RouteHost,
	})
	fmt.Fprint(std.Stderr, out.Stderr)
	fmt.Fprint(std.Stdout, out.Stdout)
	log, err := openLog(out, std)
	if err != nil {
		if !errors.Is(err, errReported) {
			fmt.Fprintln(std.Stderr, err)
		}
		return 1, nil
	}
	defer log.Close()
	if out.Config == nil {
		return out.ExitCode, nil
	}
	if message, fields := unfit(environ); message != "" {
		fatal(log.Logger, message, fields...)
		return 1, nil
	}
	quiet(out.Config)
	return serve(out.Config, log)
}

// openLog makes the configured logger and logs what happened before it was there. Without a configuration,
// or if its outputs cannot be opened, that goes to the default output.
func openLog(out config.Outcome, std logging.Streams) (*logging.Log, error) {
	cfg := out.Config
	var failed error
	if cfg != nil {
		log, err := logging.New(cfg, std)
		if err == nil {
			replay(log.Logger, out.Notices)
			return log, nil
		}
		failed = err
	}
	log, err := logging.New(config.Default(), std)
	if err != nil {
		return nil, err
	}
	replay(log.Logger, out.Notices)
	if failed == nil {
		return log, nil
	}
	log.Warn("failed to verify flags", zap.Error(failed))
	if err := log.Close(); err != nil {
		return nil, err
	}
	return nil, errReported
}

// errReported says that the log has told why the process ends.
var errReported = errors.New("the settings were refused")

// replay logs notices. A fatal one is logged as such; ending the process is the caller's.
func replay(log *zap.Logger, notices []config.Notice) {
	log = log.WithOptions(zap.WithFatalHook(fatalReturns{}))
	for _, n := range notices {
		if entry := log.Check(n.Level, n.Message); entry != nil {
			entry.Write(n.Fields...)
		}
	}
}

// unfit says why no member should start on this machine, empty if one may.
func unfit(environ []string) (message string, fields []zap.Field) {
	switch arch := goruntime.GOARCH; arch {
	case "amd64", "arm64", "ppc64le", "s390x":
	default:
		if !slices.Contains(environ, "ETCD_UNSUPPORTED_ARCH="+arch) {
			return "running on unsupported architecture unless ETCD_UNSUPPORTED_ARCH is set",
				[]zap.Field{zap.String("arch", arch)}
		}
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err == nil && limit.Cur <= fdLimitMin {
		return "file descriptor limit of etcd process is too low; please set higher",
			[]zap.Field{zap.Uint64("limit", limit.Cur), zap.Int("recommended-limit", fdLimitMin)}
	}
	return "", nil
}

// quiet keeps what libraries print for themselves out of the log's outputs; with debug, grpc's goes to
// stderr.
func quiet(cfg *config.Config) {
	if cfg.LogLevel != "debug" {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
	}
	if pprofEnabled(cfg) {
		goruntime.SetMutexProfileFraction(5)
	}
}

func pprofEnabled(cfg *config.Config) bool { return cfg.EnablePprof || cfg.LogLevel == "debug" }

// serve runs a member until a signal, or until it ends by itself.
func serve(cfg *config.Config, log *logging.Log) (code int, received os.Signal) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d, err := start(ctx, cfg, log)
	if err != nil {
		return failed(log.Logger, err), nil
	}
	select {
	case <-d.member.Ready():
	case <-d.member.Done(): // until it is ready, a signal ends the process at once
		return ended(d), nil
	}
	d.serve(ctx)
	defer pace(os.Environ())() // not before: an idle member keeps the small heap of its start

	// Capacity 1: a second signal while stopping is not waited for.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	notifyReady(log.Logger, os.Getenv("NOTIFY_SOCKET"))
	select {
	case received = <-signals:
		log.Info("received signal; shutting down", zap.String("signal", received.String()))
		if err := d.stop(cfg.RequestTimeout()); err != nil {
			return failed(log.Logger, err), nil
		}
		return 0, received
	case <-d.member.Done():
		return ended(d), nil
	case err := <-d.failures:
		log.Error("listener failed", zap.Error(err))
		_ = d.stop(cfg.RequestTimeout()) // the listener's failure is the one to tell
		return 1, nil
	}
}

// failed logs why the process could not start or stop, and returns its exit code. "discovery failed" is
// etcd's word for every failure of a start.
func failed(log *zap.Logger, err error) int {
	message := "discovery failed"
	var stage *runtime.StageError
	var listener *listenerError
	switch {
	case errors.As(err, &listener):
		message = "listener failed"
	case errors.As(err, &stage):
		message = "member failed"
	}
	fatal(log, message, zap.Error(err))
	return 1
}

// ended stops what is left of a member that ended by itself. One that was removed from its cluster has
// nothing more to do, and that is no failure.
func ended(d *daemon) int {
	err := d.stop(failedGrace)
	if errors.Is(err, runtime.ErrRemoved) {
		d.log.Warn("server error", zap.Error(runtime.ErrRemoved))
		return 0
	}
	if err == nil {
		err = errors.New("the member ended without a reason")
	}
	return failed(d.log, err)
}

// fatal logs at fatal level and returns.
func fatal(log *zap.Logger, message string, fields ...zap.Field) {
	if entry := log.WithOptions(zap.WithFatalHook(fatalReturns{})).Check(zap.FatalLevel, message); entry != nil {
		entry.Write(fields...)
	}
}
