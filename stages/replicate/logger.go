package replicate

import (
	"fmt"

	"go.uber.org/zap"
)

// raftPanic is raft's verdict that its state is impossible: it ends the stage with an error.
type raftPanic struct{ text string }

func (p raftPanic) Error() string { return "raft: " + p.text }

// logger is raft's Logger over zap, under the name that the injected one has. raft's texts are kept word
// for word: tools wait for "became leader at term" and "elected leader". Lines below the level are not
// formatted.
type logger struct {
	zap   *zap.SugaredLogger
	debug bool
	info  bool
}

func newLogger(l *zap.Logger) *logger {
	core := l.Core()
	return &logger{
		zap:   l.WithOptions(zap.AddCallerSkip(1)).Sugar(),
		debug: core.Enabled(zap.DebugLevel), info: core.Enabled(zap.InfoLevel),
	}
}

func (l *logger) Debug(v ...any) {
	if l.debug {
		l.zap.Debug(v...)
	}
}

func (l *logger) Debugf(format string, v ...any) {
	if l.debug {
		l.zap.Debugf(format, v...)
	}
}

func (l *logger) Info(v ...any) {
	if l.info {
		l.zap.Info(v...)
	}
}

// staleAck is what raft says at every acknowledgement that a later one has overtaken: with asynchronous
// storage writes that is daily business, several times per batch, not news.
const staleAck = "entry at index %d missing from unstable log; ignoring"

func (l *logger) Infof(format string, v ...any) {
	if format == staleAck {
		l.Debugf(format, v...)
		return
	}
	if l.info {
		l.zap.Infof(format, v...)
	}
}

func (l *logger) Warning(v ...any)                 { l.zap.Warn(v...) }
func (l *logger) Warningf(format string, v ...any) { l.zap.Warnf(format, v...) }
func (l *logger) Error(v ...any)                   { l.zap.Error(v...) }
func (l *logger) Errorf(format string, v ...any)   { l.zap.Errorf(format, v...) }
func (l *logger) Fatal(v ...any)                   { panic(raftPanic{fmt.Sprint(v...)}) }
func (l *logger) Fatalf(format string, v ...any)   { panic(raftPanic{fmt.Sprintf(format, v...)}) }
func (l *logger) Panic(v ...any)                   { panic(raftPanic{fmt.Sprint(v...)}) }
func (l *logger) Panicf(format string, v ...any)   { panic(raftPanic{fmt.Sprintf(format, v...)}) }
