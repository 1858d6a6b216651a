package logging

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"gopkg.in/natefinch/lumberjack.v2"

	"sluice/server/config"
)

// timeLayout has microseconds in the local zone, "Z" for UTC.
const timeLayout = "2006-01-02T15:04:05.000000Z0700"

// Samples of a message within a second: the first ones, then every so many.
const (
	samplesFirst = 100
	samplesThen  = 100
)

// Streams are the process's own outputs.
type Streams struct{ Stdout, Stderr io.Writer }

// Log is a logger with its outputs.
type Log struct {
	*zap.Logger
	writers []*writer
	files   []io.Closer
}

// New opens the outputs of c. Its errors are errors of the settings: "failed to verify flags".
func New(c *config.Config, std Streams) (*Log, error) {
	level, err := zapcore.ParseLevel(c.LogLevel)
	if err != nil {
		return nil, fmt.Errorf("parse log level: %w", err)
	}
	encoder := newEncoder(c.LogFormat)
	l := &Log{Logger: zap.NewNop()}
	if slices.Contains(c.LogOutputs, os.DevNull) { // anywhere in the list: as etcd, nothing is logged
		return l, nil
	}
	var sinks, journals []zapcore.WriteSyncer
	for _, output := range c.LogOutputs {
		out, err := l.open(c, output, std)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		w := newWriter(out, func(n uint64) []byte { return droppedLine(encoder.Clone(), n) })
		l.writers = append(l.writers, w)
		if output == config.JournalOutput {
			journals = append(journals, w)
		} else {
			sinks = append(sinks, w)
		}
	}
	var cores []zapcore.Core
	if len(sinks) > 0 {
		core := zapcore.NewCore(encoder, zapcore.NewMultiWriteSyncer(sinks...), level)
		cores = append(cores, zapcore.NewSamplerWithOptions(core, time.Second, samplesFirst, samplesThen))
	}
	for _, j := range journals {
		cores = append(cores, zapcore.NewCore(encoder.Clone(), j, level))
	}
	l.Logger = zap.New(zapcore.NewTee(cores...), zap.AddCaller(), zap.AddStacktrace(zap.ErrorLevel),
		zap.ErrorOutput(zapcore.AddSync(io.Discard)))
	return l, nil
}

// open returns the output called name.
func (l *Log) open(c *config.Config, name string, std Streams) (io.Writer, error) {
	switch name {
	case "default", "stderr":
		return std.Stderr, nil
	case "stdout":
		return std.Stdout, nil
	case config.JournalOutput:
		j, err := dialJournal(journalSocket)
		if err != nil {
			return nil, err
		}
		l.files = append(l.files, j)
		return j, nil
	}
	if c.LogRotation {
		r, err := c.Rotation()
		if err != nil {
			return nil, err
		}
		file := &lumberjack.Logger{
			Filename: name, MaxSize: r.MaxSize, MaxAge: r.MaxAge, MaxBackups: r.MaxBackups,
			LocalTime: r.LocalTime, Compress: r.Compress,
		}
		l.files = append(l.files, file)
		return file, nil
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666) // the umask has the last word
	if err != nil {
		return nil, fmt.Errorf("open sink %q: %w", name, err)
	}
	l.files = append(l.files, file)
	return file, nil
}

// Dropped is how many lines the outputs did not take.
func (l *Log) Dropped() uint64 {
	n := uint64(0)
	for _, w := range l.writers {
		n += w.droppedTotal()
	}
	return n
}

// Close writes what waits, for a bounded time, and closes the files. Later lines are dropped.
func (l *Log) Close() error {
	var errs []error
	for _, w := range l.writers {
		errs = append(errs, w.Close())
	}
	if errors.Join(errs...) == nil { // a blocked output still uses its file
		for _, f := range l.files {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

func newEncoder(format string) zapcore.Encoder {
	keys := zapcore.EncoderConfig{
		TimeKey: "ts", LevelKey: "level", NameKey: "logger", CallerKey: "caller", MessageKey: "msg",
		StacktraceKey: "stacktrace", LineEnding: zapcore.DefaultLineEnding,
		EncodeLevel:    zapcore.LowercaseLevelEncoder,
		EncodeTime:     zapcore.TimeEncoderOfLayout(timeLayout),
		EncodeDuration: zapcore.StringDurationEncoder,
		EncodeCaller:   zapcore.ShortCallerEncoder,
	}
	if format == "console" {
		return zapcore.NewConsoleEncoder(keys)
	}
	return zapcore.NewJSONEncoder(keys)
}

func droppedLine(encoder zapcore.Encoder, n uint64) []byte {
	entry := zapcore.Entry{
		Level: zapcore.WarnLevel, Time: time.Now(),
		Message: "dropped log lines because an output was blocked",
	}
	line, err := encoder.EncodeEntry(entry, []zapcore.Field{zap.Uint64("lines", n)})
	if err != nil {
		return nil // an entry of one number always encodes
	}
	defer line.Free()
	return append([]byte(nil), line.Bytes()...)
}
