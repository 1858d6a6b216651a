package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	// preface is how every HTTP/2 connection begins.
	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	// tlsRecord is the first byte of a TLS handshake.
	tlsRecord = 0x16
	// idleHTTP is how long an HTTP/1.1 connection may wait for its next request.
	idleHTTP = 5 * time.Minute
	// acceptPause is how long accepting stops when the process has no file descriptors left.
	acceptPause = 50 * time.Millisecond
)

// served is the part of a Server that exists while it serves.
type served struct {
	endpoints []*Endpoint
	toPlain   *handover // plaintext gRPC
	toTLS     *handover // TLS clients that offer only h2
	toHTTP    *handover // plaintext HTTP/1.1
	toHTTPS   *handover // TLS clients that offer http/1.1 too

	tls, web    *grpc.Server // nil without TLS
	http, https *http.Server
	stopping    chan struct{}
	stop        sync.Once
}

// Serve serves the endpoints until Shutdown, with handler for what is not gRPC. It returns nil after Shutdown,
// else the error that made it give up. It is called once.
func (s *Server) Serve(ctx context.Context, endpoints []*Endpoint, handler http.Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v := s.prepare(endpoints, handler)
	var running errgroup.Group
	run := func(serve func() error) {
		running.Go(func() error {
			err := serve()
			if errors.Is(err, grpc.ErrServerStopped) || errors.Is(err, http.ErrServerClosed) ||
				errors.Is(err, net.ErrClosed) {
				err = nil
			}
			if err != nil {
				s.cut(v) // one that fails ends the others
			}
			return err
		})
	}
	run(func() error { return s.plain.Serve(s.local) })
	run(func() error { return s.plain.Serve(v.toPlain) })
	run(func() error { return v.http.Serve(v.toHTTP) })
	if v.tls != nil {
		run(func() error { return v.tls.Serve(v.toTLS) })
		run(func() error { return v.https.Serve(v.toHTTPS) })
	}
	go s.leaders.run(ctx)
	go s.sweepStalled(ctx)
	for _, e := range endpoints {
		run(func() error { return s.accept(ctx, v, e) })
		s.announce(e)
	}
	return running.Wait()
}

// announce writes the lines that scripts wait for.
//
// Rule: contract/operations.md section 6.2.
func (s *Server) announce(e *Endpoint) {
	address := e.Addr().String()
	s.logger.Info("ready to serve client requests")
	if e.plain.any() {
		s.logger.Info("serving client traffic insecurely; this is strongly discouraged!",
			zap.Stringer("traffic", e.plain), zap.String("address", address))
	}
	if e.secure.any() {
		s.logger.Info("serving client traffic securely",
			zap.Stringer("traffic", e.secure), zap.String("address", address))
	}
}

// prepare makes the servers that the endpoints need.
func (s *Server) prepare(endpoints []*Endpoint, handler http.Handler) *served {
	var addr net.Addr = memoryAddr{}
	secure := false
	for _, e := range endpoints {
		addr = e.Addr()
		secure = secure || e.secure.any()
	}
	quiet := log.New(io.Discard, "", 0)
	v := &served{
		endpoints: endpoints, stopping: make(chan struct{}),
		toPlain: newHandover(addr), toTLS: newHandover(addr), toHTTP: newHandover(addr), toHTTPS: newHandover(addr),
		http: &http.Server{
			Handler: handler, ErrorLog: quiet, ReadHeaderTimeout: s.cfg.HandshakeTimeout, IdleTimeout: idleHTTP,
			ConnContext: withConn,
		},
	}
	if secure {
		v.tls = s.newGRPC(s.cfg.StreamWorkers, s.laxKeepAlive()...)
		v.web = s.newGRPC(0)
		v.https = &http.Server{
			Handler: v.route(handler), ErrorLog: quiet, ReadHeaderTimeout: s.cfg.HandshakeTimeout,
			ConnContext: withConn,
			HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: int(min(s.cfg.StreamsMax, math.MaxInt32))},
		}
	}
	s.mu.Lock()
	s.serving = v
	s.mu.Unlock()
	return v
}

// route gives gRPC requests of a connection that net/http serves to grpc.
func (v *served) route(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 2 && strings.Contains(r.Header.Get("Content-Type"), "application/grpc") {
			v.web.ServeHTTP(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// withConn lets the calls on a connection of net/http find it.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// accept takes connections until the endpoint is closed. Each is looked at on a goroutine of its own, for a
// client may be slow to say what it wants.
func (s *Server) accept(ctx context.Context, v *served, e *Endpoint) error {
	for {
		raw, err := e.listener.Accept()
		if err == nil {
			go s.welcome(ctx, v, e, &clientConn{Conn: raw})
			continue
		}
		var passing net.Error
		if !errors.As(err, &passing) || !passing.Temporary() { //nolint:staticcheck // EMFILE has no other name here
			return err
		}
		select {
		case <-time.After(acceptPause):
		case <-v.stopping:
			return nil
		}
	}
}

// welcome finds out what c speaks and hands it to the server that does. A connection that says nothing is
// closed after the handshake timeout.
func (s *Server) welcome(ctx context.Context, v *served, e *Endpoint, c *clientConn) {
	deadline := time.Now().Add(s.cfg.HandshakeTimeout)
	if err := c.SetDeadline(deadline); err != nil {
		c.Close()
		return
	}
	if e.secure.any() {
		secure := true
		if e.plain.any() {
			first, err := c.peek(1)
			if err != nil {
				c.Close()
				return
			}
			secure = first[0] == tlsRecord
		}
		if secure {
			s.welcomeTLS(ctx, v, e, c)
			return
		}
	}
	to := v.toHTTP
	switch {
	case !e.plain.http:
		to = v.toPlain
	case e.plain.grpc:
		speaks, err := c.speaksHTTP2()
		if err != nil {
			c.Close()
			return
		}
		if speaks {
			to = v.toPlain
		}
	}
	_ = c.SetDeadline(time.Time{})
	to.give(c)
}

// peek returns the first n bytes of the connection, which its server reads again.
func (c *clientConn) peek(n int) ([]byte, error) {
	for len(c.peeked) < n {
		b := make([]byte, n-len(c.peeked))
		m, err := c.Conn.Read(b)
		c.peeked = append(c.peeked, b[:m]...)
		if err != nil {
			return nil, err
		}
	}
	return c.peeked[:n], nil
}

// speaksHTTP2 reads until the connection's beginning differs from the preface, or is the preface.
func (c *clientConn) speaksHTTP2() (bool, error) {
	for n := 1; ; n = min(len(c.peeked)+1, len(preface)) {
		if _, err := c.peek(n); err != nil {
			return false, err
		}
		if !bytes.HasPrefix([]byte(preface), c.peeked) {
			return false, nil
		}
		if len(c.peeked) == len(preface) {
			return true, nil
		}
	}
}

// welcomeTLS makes the handshake. The ClientHello decides: who offers only h2 is a gRPC client and goes to grpc,
// everybody else to net/http, which can tell requests apart.
func (s *Server) welcomeTLS(ctx context.Context, v *served, e *Endpoint, c *clientConn) {
	secure := tls.Server(c, e.tls)
	err := secure.HandshakeContext(ctx)
	st := secure.ConnectionState()
	if err != nil {
		s.rejected(c, &st, err)
		secure.Close()
		return
	}
	c.tls = &st
	_ = c.SetDeadline(time.Time{})
	to := v.toHTTPS
	if e.secure.grpc && (!e.secure.http || !c.offersHTTP1 && st.NegotiatedProtocol == "h2") {
		to = v.toTLS
	}
	to.give(secure)
}

// rejected logs a failed handshake. A client that just goes away is no news.
func (s *Server) rejected(c net.Conn, st *tls.ConnectionState, err error) {
	fields := []zap.Field{
		zap.String("remote-addr", c.RemoteAddr().String()), zap.String("server-name", st.ServerName),
	}
	if len(st.PeerCertificates) > 0 {
		cert := st.PeerCertificates[0]
		ips := make([]string, 0, len(cert.IPAddresses))
		for _, ip := range cert.IPAddresses {
			ips = append(ips, ip.String())
		}
		fields = append(fields, zap.Strings("ip-addresses", ips), zap.Strings("dns-names", cert.DNSNames))
	}
	fields = append(fields, zap.Error(err))
	if errors.Is(err, io.EOF) {
		s.logger.Debug("rejected connection on client endpoint", fields...)
		return
	}
	s.logger.Warn("rejected connection on client endpoint", fields...)
}

// sweepStalled looks for clients that have stopped reading a large answer.
func (s *Server) sweepStalled(ctx context.Context) {
	ticker := time.NewTicker(max(s.cfg.ReadStall/(2*stallContended), time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			for _, c := range s.budget.sweep() {
				s.logStalled(c)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) logStalled(c *clientConn) {
	s.logger.Warn("closed connection of a client that does not read its answer",
		zap.String("remote-addr", c.RemoteAddr().String()))
}

// watchStall closes the connection of a call unless the timer is reset within every stall time.
func (s *Server) watchStall(ctx context.Context) *time.Timer {
	c := connOf(ctx)
	return time.AfterFunc(s.cfg.ReadStall, func() {
		if c != nil {
			c.Close()
			s.logStalled(c)
		}
	})
}

// DialLocal connects to the services from inside the process: what the JSON gateway uses.
func (s *Server) DialLocal() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///local",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.local.dial(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	)
}

// end closes the addresses and the hand-overs.
func (v *served) end() {
	v.stop.Do(func() {
		close(v.stopping)
		for _, e := range v.endpoints {
			e.Close()
		}
	})
}

// cut ends everything at once.
func (s *Server) cut(v *served) {
	v.end()
	s.plain.Stop()
	v.http.Close()
	if v.tls != nil {
		v.tls.Stop()
		v.web.Stop()
		v.https.Close()
	}
}

// Shutdown stops serving: no new connections, GOAWAY to the clients, and up to ctx's end for the calls that are
// open. What is still open then, such as watches, is cut.
//
// Rule: contract/client-api.md section 1.7.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	v := s.serving
	s.mu.Unlock()
	if v == nil {
		s.plain.Stop()
		return
	}
	v.end()
	var draining sync.WaitGroup
	drain := func(graceful, cut func()) {
		draining.Go(func() {
			done := make(chan struct{})
			go func() {
				defer close(done)
				graceful()
			}()
			select {
			case <-done:
			case <-ctx.Done():
				cut()
				<-done
			}
		})
	}
	httpDrain := func(h *http.Server) {
		drain(func() { _ = h.Shutdown(ctx) }, func() {})
	}
	httpDrain(v.http)
	drain(s.plain.GracefulStop, s.plain.Stop)
	if v.tls != nil {
		httpDrain(v.https)
		drain(v.tls.GracefulStop, v.tls.Stop)
	}
	draining.Wait()
	s.cut(v)
}
