package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"sluice/server/config"
)

// year is how --self-signed-cert-validity counts.
const year = 365 * 24 * time.Hour

// autoCertificates makes the certificates of --auto-tls and --peer-auto-tls, or takes those that an earlier
// start made, and puts them into the settings.
//
// Rule: contract/operations.md 1.6.
func autoCertificates(c *config.Config, log *zap.Logger) error {
	for _, side := range []struct {
		auto  bool
		name  string
		tls   *config.TLS
		hosts config.URLs
	}{
		{c.ClientAutoTLS, "client", &c.ClientTLS, c.ListenClientURLs},
		{c.PeerAutoTLS, "peer", &c.PeerTLS, c.ListenPeerURLs},
	} {
		if !side.auto {
			continue
		}
		if !side.tls.Empty() {
			log.Warn("ignoring "+side.name+" auto TLS since certs given", zap.String("cert-file", side.tls.CertFile))
			continue
		}
		var hosts []string
		for _, u := range side.hosts {
			hosts = append(hosts, u.Host)
		}
		dir := filepath.Join(c.DataDir, "fixtures", side.name)
		cert, key, err := selfCertificate(dir, hosts, time.Now(), time.Duration(c.SelfSignedCertValid)*year, log)
		if err != nil {
			return fmt.Errorf("make a certificate for the %s URLs: %w", side.name, err)
		}
		side.tls.CertFile, side.tls.KeyFile = cert, key
	}
	return nil
}

// selfCertificate returns the files of a certificate in dir, made now if it has none.
func selfCertificate(
	dir string, hosts []string, now time.Time, valid time.Duration, log *zap.Logger,
) (certFile, keyFile string, err error) {
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	_, certErr := os.Stat(certFile)
	_, keyErr := os.Stat(keyFile)
	if certErr == nil && keyErr == nil {
		return certFile, keyFile, nil
	}
	if valid <= 0 {
		return "", "", errors.New("--self-signed-cert-validity must be greater than 0")
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return "", "", fmt.Errorf("choose a serial number: %w", err)
	}
	template := x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"etcd"}},
		NotBefore: now, NotAfter: now.Add(valid),
		KeyUsage:    x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true, IsCA: true,
	}
	for _, host := range hosts {
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	log.Warn("automatically generate certificates", zap.Time("certificate-validity-bound-not-after", template.NotAfter))
	key, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		return "", "", fmt.Errorf("generate a key: %w", err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return "", "", fmt.Errorf("sign: %w", err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", "", fmt.Errorf("encode the key: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", err
	}
	if err := writePEM(certFile, 0o644, "CERTIFICATE", cert); err != nil {
		return "", "", err
	}
	return certFile, keyFile, writePEM(keyFile, 0o600, "EC PRIVATE KEY", secret)
}

func writePEM(path string, mode os.FileMode, kind string, data []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), mode)
}
