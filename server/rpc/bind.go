package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
)

var errNoPair = errors.New("KeyFile and CertFile are not presented")

// Bind opens one address that is not a client's, such as those for metrics: with TLS for https and unixs, and
// the socket options of cfg.
func (cfg ListenConfig) Bind(ctx context.Context, u url.URL) (net.Listener, error) {
	network, address, secure, err := addressOf(u)
	if err != nil {
		return nil, err
	}
	if secure && cfg.TLS == nil {
		return nil, errNoPair
	}
	l, err := cfg.bind(ctx, network, address)
	if err != nil || !secure {
		return l, err
	}
	return tls.NewListener(l, cfg.TLS), nil
}

// VerifySAN makes the handshake check a client certificate's names against the address that it comes from.
func VerifySAN(ctx context.Context, base *tls.Config) *tls.Config {
	outer := base.Clone()
	outer.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		inner := base.Clone()
		inner.VerifyConnection = func(st tls.ConnectionState) error {
			if base.VerifyConnection != nil {
				if err := base.VerifyConnection(st); err != nil {
					return err
				}
			}
			if len(st.PeerCertificates) == 0 {
				return nil
			}
			return CheckSAN(ctx, st.PeerCertificates[0], hello.Conn.RemoteAddr())
		}
		return inner, nil
	}
	return outer
}
