package rpc

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stagePackages are those whose sentinels clients can meet.
var stagePackages = []string{
	"propose", "apply", "apply/alarms", "apply/auth", "apply/lease", "apply/members", "apply/mvcc", "expire", "watch",
}

// sentinels returns the names of the exported errors that a package declares.
func sentinels(t *testing.T, pkg string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", "stages", pkg, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(pkg, err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.VAR {
				continue
			}
			for _, spec := range g.Specs {
				for _, id := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(id.Name, "Err") {
						names = append(names, filepath.Base(pkg)+"."+id.Name)
					}
				}
			}
		}
	}
	return names
}

// mapped returns the names of the sentinels in the table's source.
func mapped(t *testing.T) map[string]bool {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		row, ok := n.(*ast.CompositeLit)
		if !ok || row.Type != nil || len(row.Elts) != 2 {
			return true
		}
		if sel, ok := row.Elts[0].(*ast.SelectorExpr); ok {
			names[sel.X.(*ast.Ident).Name+"."+sel.Sel.Name] = true
		}
		return true
	})
	return names
}

// Every sentinel of a stage has its row, and every row's client error is what rpctypes makes of its text: the
// typed error that clients match on, under the code that the catalogue gives it (client-api.md section 3).
func TestErrorTableBothWays(t *testing.T) {
	have := mapped(t)
	for _, pkg := range stagePackages {
		for _, name := range sentinels(t, pkg) {
			if !have[name] {
				t.Errorf("%s has no row", name)
			}
		}
	}
	s := &Server{errors: errorTable()}
	if len(have) != len(s.errors) {
		t.Errorf("%d rows, %d sentinels named in the source", len(s.errors), len(have))
	}
	for _, row := range s.errors {
		for _, err := range []error{row.sentinel, fmt.Errorf("while trying: %w", row.sentinel)} {
			if got := s.status(err); got != row.client {
				t.Errorf("%v became %v, want %v", err, got, row.client)
			}
		}
		st, ok := status.FromError(row.client)
		if !ok {
			t.Errorf("%v: not a status", row.client)
			continue
		}
		typed, ok := rpctypes.Error(row.client).(rpctypes.EtcdError)
		if ok && st.Code() != codes.Unknown && typed.Code() != st.Code() {
			t.Errorf("%q has code %s on the wire, clients derive %s", st.Message(), st.Code(), typed.Code())
		}
	}
}

// Errors that travel with another code than their constant's, or have none (client-api.md 3.1).
func TestUnknownCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		text string
	}{
		{errTooManyRequests, rpctypes.ErrorDesc(rpctypes.ErrGRPCRequestTooManyRequests)},
		{errNotEnoughStarted, rpctypes.ErrorDesc(rpctypes.ErrGRPCMemberNotEnoughStarted)},
		{errNoPasswordUser, "auth: authentication failed, password was given for no password user"},
		{errNotPrimary, "not a primary lessor"},
		{errTransferTimeout, "etcdserver: request timed out, leader transfer took too long"},
		{errUnknownDowngrade, "etcdserver: unknown method"},
	} {
		wantError(t, c.text, c.err, status.Error(codes.Unknown, c.text))
	}
}

// Contexts keep their plain text, and what nobody knows travels as it is (client-api.md 2.4, 3.1).
func TestPlainErrors(t *testing.T) {
	s := &Server{errors: errorTable()}
	wantError(t, "deadline", s.status(fmt.Errorf("wait: %w", context.DeadlineExceeded)),
		status.Error(codes.DeadlineExceeded, "context deadline exceeded"))
	wantError(t, "cancel", s.status(context.Canceled), status.Error(codes.Canceled, "context canceled"))
	wantError(t, "other", s.status(fmt.Errorf("disk on fire")), status.Error(codes.Unknown, "disk on fire"))
	if s.status(nil) != nil {
		t.Error("nil became an error")
	}
}
