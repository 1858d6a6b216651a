package process

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// kubeVersion names the cache folder and is what the program says it is.
const kubeVersion = "1.37.2"

var kube = sync.OnceValues(buildKube)

// KubeAPIServer returns the program kube-apiserver, building it from the module in bench/kube into the user's
// cache folder the first time, which takes minutes. An environment variable SLUICE_KUBE_APISERVER names a
// program to take instead.
func KubeAPIServer() (string, error) { return kube() }

func buildKube() (string, error) {
	if program := os.Getenv("SLUICE_KUBE_APISERVER"); program != "" {
		return program, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a folder for kube-apiserver: %w", err)
	}
	path := filepath.Join(cache, "sluice-kube", kubeVersion, "kube-apiserver")
	if _, err = os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", fmt.Errorf("make a folder for kube-apiserver: %w", err)
	}
	// Built aside and renamed, so that two builds at once leave one whole program.
	aside := fmt.Sprintf("%s.%d", path, os.Getpid())
	version := "-s -w -X k8s.io/component-base/version.gitVersion=v" + kubeVersion
	pkg := "k8s.io/kubernetes/cmd/kube-apiserver"
	if err := build(filepath.Join(Root(), "bench", "kube"), aside, pkg, "-ldflags", version); err != nil {
		return "", err
	}
	if err := os.Rename(aside, path); err != nil {
		return "", fmt.Errorf("keep kube-apiserver: %w", err)
	}
	return path, nil
}

// APIServer is a running kube-apiserver whose only store is one daemon.
type APIServer struct {
	URL    string
	Extra  []string     // further flags
	Client *http.Client // trusts the server and is its administrator

	program, dir, store string
	cmd                 *exec.Cmd
	log                 *logBuffer
	exited              chan struct{}
	state               error // of Wait; read after exited
}

// NewAPIServer describes a kube-apiserver on a free loopback port with its keys below dir.
func NewAPIServer(program, dir string, store *Daemon, extra ...string) (*APIServer, error) {
	address, err := freePort()
	if err != nil {
		return nil, err
	}
	a := &APIServer{URL: "https://" + address, Extra: extra, program: program, dir: dir, store: store.Client}
	roots, err := a.writeKeys()
	if err != nil {
		return nil, err
	}
	a.Client = &http.Client{Transport: bearer{&http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 64,
	}}}
	return a, nil
}

const adminToken = "administrator" // of a server that lives as long as its test, on loopback

// bearer puts the administrator's token on each request.
type bearer struct{ http.RoundTripper }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+adminToken)
	return b.RoundTripper.RoundTrip(r)
}

func (a *APIServer) file(name string) string { return filepath.Join(a.dir, name) }

// writeKeys makes one key, which serves TLS and signs service accounts, its certificate, and the administrator.
func (a *APIServer) writeKeys() (*x509.CertPool, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{
		"key.pem":    pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		"cert.pem":   cert,
		"tokens.csv": []byte(adminToken + ",admin,admin,system:masters\n"),
	} {
		if err := os.WriteFile(a.file(name), content, 0o600); err != nil {
			return nil, fmt.Errorf("write the server's keys: %w", err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	return roots, nil
}

// Start runs the server and returns when /readyz says so, or ErrNotReady with the end of its log.
func (a *APIServer) Start(ctx context.Context) error {
	args := []string{
		"--etcd-servers=" + a.store, "--bind-address=127.0.0.1", "--secure-port=" + portOf(a.URL),
		// The address is only written into the service "kubernetes", which may not name loopback.
		"--advertise-address=192.0.2.1", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + a.file("key.pem"), "--service-account-signing-key-file=" + a.file("key.pem"),
		"--tls-cert-file=" + a.file("cert.pem"), "--tls-private-key-file=" + a.file("key.pem"),
		"--token-auth-file=" + a.file("tokens.csv"), "--authorization-mode=RBAC",
		"--disable-admission-plugins=ServiceAccount", // there is no controller that makes the accounts
	}
	a.cmd = exec.Command(a.program, append(args, a.Extra...)...)
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	a.log = &logBuffer{}
	a.cmd.Stderr, a.cmd.Stdout = a.log, a.log
	if err := a.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", a.program, err)
	}
	a.exited = make(chan struct{})
	go func() { a.state = a.cmd.Wait(); close(a.exited) }()
	return a.AwaitReady(ctx)
}

func portOf(url string) string { return url[len("https://127.0.0.1:"):] }

// AwaitReady returns when /readyz says ok, at most two minutes later.
func (a *APIServer) AwaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if a.ready(ctx) {
			return nil
		}
		select {
		case <-a.exited:
			return fmt.Errorf("%w: %s ended: %v\n%s", ErrNotReady, a.program, a.state, a.Log())
		case <-ctx.Done():
			return fmt.Errorf("%w: %s: %w\n%s", ErrNotReady, a.program, ctx.Err(), a.Log())
		case <-tick.C:
		}
	}
}

func (a *APIServer) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := a.Client.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Kill ends the server at once and waits for its end.
func (a *APIServer) Kill() {
	if a.cmd == nil || a.cmd.Process == nil {
		return
	}
	_ = a.cmd.Process.Kill()
	<-a.exited
}

// Log returns the last lines that the server wrote.
func (a *APIServer) Log() string { return a.log.tail() }
