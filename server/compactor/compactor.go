package compactor

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sluice/server/config"
)

// Config of a compactor. All fields are needed.
type Config struct {
	Mode      string        // config.ModePeriodic or config.ModeRevision
	Retention time.Duration // in revision mode the number of revisions to keep; above 0
	Leading   func() bool
	Revision  func() int64
	// Compact compacts up to revision; a revision that is already compacted is no error.
	Compact func(ctx context.Context, revision int64) error
	Logger  *zap.Logger
}

// Run compacts until ctx ends.
func Run(ctx context.Context, cfg Config) {
	var c core
	field := zap.Duration("compact-period", cfg.Retention)
	switch cfg.Mode {
	case config.ModePeriodic:
		c = newPeriodic(time.Now(), cfg.Retention)
	case config.ModeRevision:
		c = &byRevision{keep: int64(cfg.Retention)}
		field = zap.Int64("revision-compaction-retention", int64(cfg.Retention))
	default:
		panic(fmt.Sprintf("compactor: unknown mode %q", cfg.Mode))
	}
	ticker := time.NewTicker(c.interval())
	defer ticker.Stop()
	c.record(cfg.Revision())
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if cfg.Mode == config.ModeRevision {
			c.record(cfg.Revision()) // the newest; a period looks at what it recorded a tick ago
		}
		if cfg.Leading() {
			compact(ctx, cfg, c, field)
		}
		if cfg.Mode == config.ModePeriodic {
			c.record(cfg.Revision())
		}
	}
}

// compact compacts what is due. The member's own context of a proposal bounds how long it takes.
func compact(ctx context.Context, cfg Config, c core, field zap.Field) {
	started := time.Now()
	target, ok := c.due(started)
	if !ok {
		return
	}
	cfg.Logger.Info("starting auto "+cfg.Mode+" compaction", zap.Int64("revision", target), field)
	if err := cfg.Compact(ctx, target); err != nil {
		cfg.Logger.Warn("failed auto "+cfg.Mode+" compaction", zap.Int64("revision", target), field,
			zap.Duration("retry-interval", c.interval()), zap.Error(err))
		return
	}
	c.compacted(started, target)
	cfg.Logger.Info("completed auto "+cfg.Mode+" compaction", zap.Int64("revision", target), field,
		zap.Duration("took", time.Since(started)))
}
