package rpc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"
)

// TLSOptions are the rules of the client URLs' transport security.
type TLSOptions struct {
	CertFile, KeyFile string // --cert-file, --key-file: read again for every handshake
	TrustedCAFile     string // --trusted-ca-file: makes client certificates mandatory by itself; read once
	ClientCertAuth    bool   // --client-cert-auth
	CRLFile           string // --client-crl-file, DER: read again for every handshake
	AllowedHostnames  []string
	AllowedCNs        []string

	CipherSuites           []uint16 // nil: Go's choice
	MinVersion, MaxVersion uint16   // 0: TLS 1.2, no maximum
}

var (
	errClientCertAuth = errors.New("client certificate authentication failed")
	errRevoked        = errors.New("certificate serial is revoked")
)

// sanLookupMax bounds the name look-ups for one connection.
const sanLookupMax = 5 * time.Second

// ServerTLS checks the files and makes the configuration that Listen takes.
func ServerTLS(o TLSOptions) (*tls.Config, error) {
	if _, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile); err != nil {
		return nil, fmt.Errorf("load certificate %s, key %s: %w", o.CertFile, o.KeyFile, err)
	}
	cfg := &tls.Config{
		MinVersion:   max(o.MinVersion, tls.VersionTLS12),
		MaxVersion:   o.MaxVersion,
		CipherSuites: o.CipherSuites,
		NextProtos:   []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			cert, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
			return &cert, err
		},
		VerifyConnection: o.verify,
	}
	if o.TrustedCAFile != "" {
		pem, err := os.ReadFile(o.TrustedCAFile)
		if err != nil {
			return nil, fmt.Errorf("read trusted CA file: %w", err)
		}
		cfg.ClientCAs = x509.NewCertPool()
		if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("trusted CA file %s holds no certificate", o.TrustedCAFile)
		}
	}
	if o.TrustedCAFile != "" || o.ClientCertAuth {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// verify looks at the client's certificate beyond its chain, also when a session is resumed.
func (o *TLSOptions) verify(st tls.ConnectionState) error {
	if o.CRLFile != "" {
		if err := o.checkRevoked(st.PeerCertificates); err != nil {
			return err
		}
	}
	if len(o.AllowedHostnames) == 0 && len(o.AllowedCNs) == 0 {
		return nil
	}
	for _, chain := range st.VerifiedChains {
		if len(chain) == 0 {
			continue
		}
		if slices.Contains(o.AllowedCNs, chain[0].Subject.CommonName) {
			return nil
		}
		for _, name := range o.AllowedHostnames {
			if chain[0].VerifyHostname(name) == nil {
				return nil
			}
		}
	}
	return errClientCertAuth
}

// checkRevoked refuses certificates that the revocation list names. A list that cannot be read refuses all.
func (o *TLSOptions) checkRevoked(certs []*x509.Certificate) error {
	der, err := os.ReadFile(o.CRLFile)
	if err != nil {
		return fmt.Errorf("read revocation list: %w", err)
	}
	crl, err := x509.ParseRevocationList(der)
	if err != nil {
		return fmt.Errorf("parse revocation list %s: %w", o.CRLFile, err)
	}
	for _, c := range certs {
		for _, revoked := range crl.RevokedCertificateEntries {
			if c.SerialNumber.Cmp(revoked.SerialNumber) == 0 {
				return fmt.Errorf("%w: %s", errRevoked, c.SerialNumber)
			}
		}
	}
	return nil
}

// CheckSAN refuses a certificate that names addresses or hosts none of which is where its connection comes from.
// A certificate without names says nothing about its place. It is for listeners that are not the client URLs: on
// those the reference accepts a certificate from anywhere, and so do we.
func CheckSAN(ctx context.Context, cert *x509.Certificate, remote net.Addr) error {
	if len(cert.IPAddresses) == 0 && len(cert.DNSNames) == 0 {
		return nil
	}
	host, _, err := net.SplitHostPort(remote.String())
	if err != nil {
		return nil // a unix socket: there is no place to compare
	}
	if len(cert.IPAddresses) > 0 && cert.VerifyHostname(host) == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sanLookupMax)
	defer cancel()
	for _, name := range cert.DNSNames {
		addrs, err := net.DefaultResolver.LookupHost(ctx, name)
		if err == nil && slices.Contains(addrs, host) {
			return nil
		}
	}
	names, err := net.DefaultResolver.LookupAddr(ctx, host)
	if err == nil {
		for _, name := range names {
			if cert.VerifyHostname(trimDot(name)) == nil {
				return nil
			}
		}
	}
	return fmt.Errorf("tls: %q does not match any of the certificate's addresses %v or names %q",
		host, cert.IPAddresses, cert.DNSNames)
}

func trimDot(name string) string {
	if n := len(name); n > 0 && name[n-1] == '.' {
		return name[:n-1]
	}
	return name
}
