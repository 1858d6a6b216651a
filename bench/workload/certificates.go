package workload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certify makes an authority and a certificate of 127.0.0.1 signed by it, in dir, and returns how clients
// connect and which flags the daemon needs.
func certify(dir string, s Security) (*tls.Config, []string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("make certificates: %w", err)
	}
	ca, caKey, err := issue(filepath.Join(dir, "ca"), nil, nil)
	if err != nil {
		return nil, nil, err
	}
	own := filepath.Join(dir, "member")
	if _, _, err := issue(own, ca, caKey); err != nil {
		return nil, nil, err
	}
	pair, err := tls.LoadX509KeyPair(own+".pem", own+".key")
	if err != nil {
		return nil, nil, fmt.Errorf("make certificates: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	flags := []string{"--cert-file=" + own + ".pem", "--key-file=" + own + ".key"}
	if s == MutualTLS {
		config.Certificates = []tls.Certificate{pair}
		flags = append(flags, "--client-cert-auth", "--trusted-ca-file="+filepath.Join(dir, "ca.pem"))
	}
	return config, flags, nil
}

// issue writes path.pem and path.key: an authority if ca is nil, else a certificate signed by ca.
func issue(path string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: filepath.Base(path)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if ca == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		template.ExtKeyUsage = nil
		ca, caKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	for file, block := range map[string]*pem.Block{
		path + ".pem": {Type: "CERTIFICATE", Bytes: der}, path + ".key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			return nil, nil, fmt.Errorf("write a certificate: %w", err)
		}
	}
	return certificate, key, nil
}
