package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"testing"

	"sluice/bench/process"
)

// kubeObject is what this test needs of any object, list or status that kube-apiserver speaks of.
type kubeObject struct {
	APIVersion string            `json:"apiVersion,omitempty"`
	Kind       string            `json:"kind,omitempty"`
	Metadata   kubeMeta          `json:"metadata"`
	Data       map[string]string `json:"data,omitempty"`
	Spec       json.RawMessage   `json:"spec,omitempty"`
	Status     json.RawMessage   `json:"status,omitempty"`
	Items      []kubeObject      `json:"items,omitempty"`
	Reason     string            `json:"reason,omitempty"`
	Message    string            `json:"message,omitempty"`
}

type kubeMeta struct {
	Name            string            `json:"name,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Continue        string            `json:"continue,omitempty"`
	Remaining       int               `json:"remainingItemCount,omitempty"`
}

// revision is the object's resource version, which is a revision of the store.
func (o kubeObject) revision() int64 {
	rev, _ := strconv.ParseInt(o.Metadata.ResourceVersion, 10, 64)
	return rev
}

// kubeError is an answer that is no success.
type kubeError struct {
	code int
	kubeObject
}

func (e *kubeError) Error() string { return fmt.Sprintf("%d %s: %s", e.code, e.Reason, e.Message) }

// answered says whether err is an answer of that code.
func answered(err error, code int) bool {
	var e *kubeError
	return errors.As(err, &e) && e.code == code
}

// kubeAPI speaks to a kube-apiserver as its administrator.
type kubeAPI struct{ *process.APIServer }

// do sends body, an object or JSON as it is, and returns the answer; a *kubeError where it is a refusal.
func (a kubeAPI) do(ctx context.Context, method, path string, body any) (kubeObject, error) {
	resp, err := a.send(ctx, method, path, body)
	if err != nil {
		return kubeObject{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body) // to its end, so that the connection serves again
	if err != nil {
		return kubeObject{}, fmt.Errorf("read the answer to %s %s: %w", method, path, err)
	}
	var o kubeObject
	err = json.Unmarshal(text, &o)
	if resp.StatusCode >= 300 {
		return o, &kubeError{resp.StatusCode, o}
	}
	if err != nil {
		return o, fmt.Errorf("decode the answer to %s %s: %w", method, path, err)
	}
	return o, nil
}

func (a kubeAPI) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content []byte
	switch b := body.(type) {
	case nil:
	case string:
		content = []byte(b)
	default:
		var err error
		if content, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("encode the body of %s %s: %w", method, path, err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, a.URL+path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	return a.Client.Do(req)
}

// must is do where no refusal is expected.
func (a kubeAPI) must(t *testing.T, method, path string, body any) kubeObject {
	t.Helper()
	o, err := a.do(t.Context(), method, path, body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return o
}

// kubeEvent is one line of a watch.
type kubeEvent struct {
	Type   string     `json:"type"`
	Object kubeObject `json:"object"`
}

// watch calls each for every event until it returns false, or the server ends the watch.
func (a kubeAPI) watch(ctx context.Context, path string, query url.Values, each func(kubeEvent) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	query.Set("watch", "true")
	resp, err := a.send(ctx, http.MethodGet, path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	d := json.NewDecoder(resp.Body)
	if resp.StatusCode != http.StatusOK {
		var o kubeObject
		_ = d.Decode(&o)
		return &kubeError{resp.StatusCode, o}
	}
	for {
		var ev kubeEvent
		if err := d.Decode(&ev); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("watch %s: %w", path, err)
		}
		if ev.Type == "ERROR" {
			return &kubeError{http.StatusGone, ev.Object}
		}
		if !each(ev) {
			return nil
		}
	}
}

// metric adds up the samples of a metric whose labels match.
func (a kubeAPI) metric(t *testing.T, name, labels string) float64 {
	t.Helper()
	resp, err := a.send(t.Context(), http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, m := range regexp.MustCompile(`(?m)^`+name+`\{(.*)\} (\S+)$`).FindAllSubmatch(text, -1) {
		if regexp.MustCompile(labels).Match(m[1]) {
			v, err := strconv.ParseFloat(string(m[2]), 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += v
		}
	}
	return sum
}

func configMap(name string, data ...string) kubeObject {
	o := kubeObject{APIVersion: "v1", Kind: "ConfigMap", Metadata: kubeMeta{Name: name}, Data: map[string]string{}}
	for i := 0; i+1 < len(data); i += 2 {
		o.Data[data[i]] = data[i+1]
	}
	return o
}

func configMaps(namespace string) string { return "/api/v1/namespaces/" + namespace + "/configmaps" }
