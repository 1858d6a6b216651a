package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"sluice/runtime"
	"sluice/server/compactor"
	"sluice/server/config"
	"sluice/server/logging"
	"sluice/server/rpc"
	"sluice/server/web"
	"sluice/tracing"
)

const (
	// bodyShare is how much larger a JSON body may be than the request that it holds: base64 in text that
	// may be escaped.
	bodyShare = 4
	bodyExtra = 1 << 20
	// sideStop is how long requests on the metrics and peer URLs may take to end when the member stops.
	sideStop = time.Second
	// headerMax is how long a client of a side listener may take to send its headers.
	headerMax = 10 * time.Second
	// failedGrace is what clients of a member that has failed have for the answers that tell them.
	failedGrace = time.Second
	// stopExtra is added to the request timeout for what a stop does beside waiting for requests.
	stopExtra = 10 * time.Second
)

// daemon is a running member with all that listens for it.
type daemon struct {
	// Fixed at start.
	cfg       *config.Config
	log       *zap.Logger
	metrics   *tracing.Metrics
	member    *runtime.Member
	clients   *rpc.Server
	local     *grpc.ClientConn // the gateway's, to clients
	web       *web.Web
	handler   http.Handler // of the client URLs
	endpoints []*rpc.Endpoint
	peers     []*side
	monitors  []*side

	failures chan error // of listeners; capacity 1, the first counts
	tasks    sync.WaitGroup
	cancel   context.CancelFunc // ends the tasks; set by serve
}

// side is an HTTP server beside the client URLs.
type side struct {
	url      url.URL
	listener net.Listener
	server   *http.Server
}

// stop lets the requests that run end, for sideStop at most.
func (s *side) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), sideStop)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		s.server.Close()
	}
}

// start binds everything, opens the data directory and starts the member. Clients are served by serve, once
// the member is ready: until then their connections wait. When it fails, it leaves nothing behind.
func start(ctx context.Context, cfg *config.Config, log *logging.Log) (_ *daemon, err error) {
	d := &daemon{
		cfg: cfg, log: log.Logger, metrics: tracing.NewMetrics(cfg.Metrics == "extensive"), failures: make(chan error, 1),
		cancel: func() {},
	}
	d.metrics.SetLogDropped(log.Dropped)
	defer func() {
		if err != nil {
			d.release()
		}
	}()
	initialized, err := inspect(cfg, d.log)
	if err != nil {
		return nil, err
	}
	if err := cfg.Prepare(); err != nil {
		return nil, err
	}
	if err := d.listen(ctx); err != nil {
		return nil, err
	}
	logStart(cfg, d.log, initialized)
	d.log.Warn("simple token is not cryptographically signed")
	if d.member, err = runtime.New(memberConfig(cfg, d.log, d.metrics)); err != nil {
		d.log.Error("bootstrap failed", zap.Error(err))
		return nil, err
	}
	if err := d.connect(ctx); err != nil {
		d.member.Abandon()
		return nil, err
	}
	d.identify()
	message := "starting local member"
	if d.member.Existing() {
		message = "restarting local member"
	}
	d.log.Info(message, zap.String("local-member-id", hex(d.member.MemberID())),
		zap.String("cluster-id", hex(d.member.ClusterID())), zap.Uint64("commit-index", d.member.CommitIndex()))
	d.member.Start(ctx)
	d.serveSides()
	return d, nil
}

// listen binds the peer, client and metrics URLs, in etcd's order.
func (d *daemon) listen(ctx context.Context) error {
	c := d.cfg
	if err := autoCertificates(c, d.log); err != nil {
		return err
	}
	peerTLS, err := tlsConfig(c, c.PeerTLS)
	if err != nil {
		return err
	}
	clientTLS, err := tlsConfig(c, c.ClientTLS)
	if err != nil {
		return err
	}
	if c.SocketReusePort || c.SocketReuseAddress {
		d.log.Info("configuring socket options",
			zap.Bool("reuse-address", c.SocketReuseAddress), zap.Bool("reuse-port", c.SocketReusePort))
	}
	sockets := rpc.ListenConfig{
		Client: c.ListenClientURLs, HTTP: c.ListenClientHTTPURLs, TLS: clientTLS,
		ReusePort: c.SocketReusePort, ReuseAddress: c.SocketReuseAddress,
	}
	if peerTLS != nil && !c.PeerSkipClientSANVerification {
		peerTLS = rpc.VerifySAN(ctx, peerTLS)
	}
	d.log.Info("configuring peer listeners", zap.Strings("listen-peer-urls", c.ListenPeerURLs.Strings()))
	if d.peers, err = bindSides(ctx, rpc.ListenConfig{
		TLS: peerTLS, ReusePort: c.SocketReusePort, ReuseAddress: c.SocketReuseAddress,
	}, c.ListenPeerURLs); err != nil {
		d.log.Error("creating peer listener failed", zap.Error(err))
		return err
	}
	d.log.Info("configuring client listeners", zap.Strings("listen-client-urls", c.ListenClientURLs.Strings()))
	d.warnPlaintext()
	if d.endpoints, err = rpc.Listen(ctx, sockets); err != nil {
		return err
	}
	if clientTLS != nil && !c.ClientSkipClientSANVerification {
		sockets.TLS = rpc.VerifySAN(ctx, clientTLS) // of the metrics URLs only, as in etcd
	}
	d.monitors, err = bindSides(ctx, sockets, c.ListenMetricsURLs)
	return err
}

// warnPlaintext tells of certificates that protect nothing because the URL's scheme does not ask for them.
func (d *daemon) warnPlaintext() {
	for _, u := range d.cfg.ListenClientURLs {
		if config.Secure(u) {
			continue
		}
		if !d.cfg.ClientTLS.Empty() {
			d.log.Warn("scheme is http or unix while key and cert files are present; ignoring key and cert files",
				zap.String("client-url", u.String()))
		}
		if d.cfg.ClientTLS.ClientCertAuth {
			d.log.Warn("scheme is http or unix while --client-cert-auth is enabled; ignoring client cert auth for this URL",
				zap.String("client-url", u.String()))
		}
	}
}

func bindSides(ctx context.Context, sockets rpc.ListenConfig, urls config.URLs) ([]*side, error) {
	var sides []*side
	for _, u := range urls {
		l, err := sockets.Bind(ctx, u)
		if err != nil {
			if config.Secure(u) && sockets.TLS == nil {
				err = fmt.Errorf("cannot listen on TLS for %s: %w", u.Host, err)
			}
			return sides, err
		}
		sides = append(sides, &side{url: u, listener: l})
	}
	return sides, nil
}

// connect makes what serves clients: the gRPC services, the gateway that calls them, the HTTP handlers.
func (d *daemon) connect(ctx context.Context) (err error) {
	c, m := d.cfg, webMember{d.member}
	d.clients = rpc.New(rpcConfig(c, d.log, d.metrics), d.member)
	settings := web.Config{
		Member: m, Metrics: d.metrics, Logger: d.log, Version: config.Version, RequestTimeout: c.RequestTimeout(),
		Pprof: pprofEnabled(c), CORS: c.CORS, HostWhitelist: c.HostWhitelist,
	}
	if settings.Pprof {
		d.log.Info("pprof is enabled", zap.String("path", "/debug/pprof"))
	}
	if c.EnableGateway {
		if d.local, err = d.clients.DialLocal(); err != nil {
			return fmt.Errorf("connect the gateway: %w", err)
		}
		settings.Gateway, err = web.NewGateway(ctx, web.GatewayConfig{
			Conn: d.local, Logger: d.log, BodyBytesMax: bodyShare*int64(c.RequestBytesMax) + bodyExtra, CORS: c.CORS,
			AuthEnabled: m.AuthEnabled,
		})
		if err != nil {
			return err
		}
	}
	d.web = web.New(settings)
	d.handler = d.web.Client()
	return nil
}

// identify sets the metrics that never change.
func (d *daemon) identify() {
	x, id := d.metrics, hex(d.member.MemberID())
	x.ServerVersion.WithLabelValues(config.Version).Set(1)
	x.GoVersion.WithLabelValues(goVersion()).Set(1)
	x.ServerID.WithLabelValues(id).Set(1)
	x.KnownPeers.WithLabelValues(id, id).Set(1)
	x.QuotaBytes.Set(float64(d.cfg.QuotaBackendBytes))
	for _, g := range d.cfg.FeatureGates.All() {
		on := 0.0
		if g.Enabled {
			on = 1
		}
		x.FeatureEnabled.WithLabelValues(g.Name, g.Stage).Set(on)
	}
}

// serveSides serves the metrics and peer URLs: they answer before the member has a leader.
func (d *daemon) serveSides() {
	d.log.Info("now serving peer/client/metrics",
		zap.String("local-member-id", hex(d.member.MemberID())),
		zap.Strings("initial-advertise-peer-urls", d.cfg.AdvertisePeerURLs.Strings()),
		zap.Strings("listen-peer-urls", d.cfg.ListenPeerURLs.Strings()),
		zap.Strings("advertise-client-urls", d.cfg.AdvertiseClientURLs.Strings()),
		zap.Strings("listen-client-urls", d.cfg.ListenClientURLs.Strings()),
		zap.Strings("listen-metrics-urls", d.cfg.ListenMetricsURLs.Strings()))
	peer := d.web.Peer(d.member.ClusterID(), webMember{d.member}.PeerMembers)
	for _, s := range d.peers {
		d.log.Info("serving peer traffic", zap.String("address", s.listener.Addr().String()))
		d.serveSide(s, peer)
	}
	metrics := d.web.Metrics()
	for _, s := range d.monitors {
		d.log.Info("serving metrics", zap.String("address", s.url.String()))
		d.serveSide(s, metrics)
	}
}

func (d *daemon) serveSide(s *side, handler http.Handler) {
	s.server = &http.Server{Handler: handler, ReadHeaderTimeout: headerMax, ErrorLog: stdlog.New(io.Discard, "", 0)}
	d.tasks.Go(func() {
		if err := s.server.Serve(s.listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
			d.report(fmt.Errorf("serve %s: %w", s.url.String(), err))
		}
	})
}

func (d *daemon) report(err error) {
	select {
	case d.failures <- err:
	default: // one is enough to end the process
	}
}

// serve serves clients, and starts what else a ready member does.
func (d *daemon) serve(ctx context.Context) {
	ctx, d.cancel = context.WithCancel(ctx)
	d.tasks.Go(func() {
		if err := d.clients.Serve(ctx, d.endpoints, d.handler); err != nil {
			d.report(fmt.Errorf("serve clients: %w", err))
		}
	})
	d.tasks.Go(func() { watchDescriptors(ctx, d.metrics, d.log) })
	if d.cfg.AutoCompactionRetention > 0 {
		m := webMember{d.member}
		d.tasks.Go(func() {
			compactor.Run(ctx, compactor.Config{
				Mode: d.cfg.AutoCompactionMode, Retention: d.cfg.AutoCompactionRetention,
				Leading:  func() bool { return m.Leader() == m.MemberID() },
				Revision: m.Revision, Compact: m.Compact, Logger: d.log,
			})
		})
	}
}

// stop ends everything in order, and returns the failure of the member if it had one: first the clients,
// which have at most grace to end their calls, then the metrics URLs, the member, the peer URLs.
//
// Rule: contract/operations.md section 7.
func (d *daemon) stop(grace time.Duration) error {
	names := []zap.Field{
		zap.String("name", d.cfg.Name), zap.String("data-dir", d.cfg.DataDir),
		zap.Strings("advertise-peer-urls", d.cfg.AdvertisePeerURLs.Strings()),
		zap.Strings("advertise-client-urls", d.cfg.AdvertiseClientURLs.Strings()),
	}
	d.log.Info("closing etcd server", names...)
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	d.clients.Shutdown(ctx)
	cancel()
	d.cancel()
	for _, s := range d.monitors {
		s.stop()
	}
	if d.local != nil {
		d.local.Close()
	}
	if d.member.Leader() == d.member.MemberID() {
		d.log.Info("skipped leadership transfer for single voting member cluster",
			zap.String("local-member-id", hex(d.member.MemberID())),
			zap.String("current-leader-member-id", hex(d.member.Leader())))
	}
	ctx, cancel = context.WithTimeout(context.Background(), d.cfg.RequestTimeout()+stopExtra)
	err := d.member.Stop(ctx)
	cancel()
	for _, s := range d.peers {
		d.log.Info("stopping serving peer traffic", zap.String("address", s.listener.Addr().String()))
		s.stop()
		d.log.Info("stopped serving peer traffic", zap.String("address", s.listener.Addr().String()))
	}
	for _, e := range d.endpoints {
		e.Close() // not served if the member failed before it was ready
	}
	d.tasks.Wait()
	d.log.Info("closed etcd server", names...)
	return err
}

// release gives up what a failed start has bound.
func (d *daemon) release() {
	for _, s := range append(d.peers, d.monitors...) {
		s.listener.Close()
	}
	for _, e := range d.endpoints {
		e.Close()
	}
	if d.local != nil {
		d.local.Close()
	}
	if d.clients != nil {
		d.clients.Shutdown(context.Background())
	}
}
