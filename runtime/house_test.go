package runtime

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// sources calls fn for every Go file of the module, by its slash path from the module's top.
func sources(t *testing.T, mode parser.Mode, fn func(path string, fset *token.FileSet, file *ast.File)) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); name == "testdata" || name == ".git" || name == "oracle" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, mode)
		if err != nil {
			return err
		}
		fn(filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator))), fset, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// layer orders the rooms: imports point to a lower layer, or stay inside one room.
func layer(pkg string) (rank int, room string) {
	parts := strings.Split(pkg, "/")
	switch parts[0] {
	case "mailbox":
		return -1, parts[0]
	case "tracing": // shows the meters of mailboxes
		return 0, parts[0]
	case "stages":
		if parts[1] == "wire" {
			return 1, "stages/wire"
		}
		return 2, "stages/" + parts[1]
	case "runtime":
		return 3, "runtime"
	case "server":
		return 4, "server"
	default:
		return 5, parts[0]
	}
}

// oracleModule is the reference's daemon.
const oracleModule = "go.etcd.io/etcd/" + "server"

// design.md section 1: server -> runtime -> stages -> mailbox, tracing; a stage never imports another one.
// Nothing imports etcd's server.
func TestImportsPointOneWay(t *testing.T) {
	sources(t, parser.ImportsOnly, func(path string, _ *token.FileSet, file *ast.File) {
		from := filepath.ToSlash(filepath.Dir(path))
		rank, room := layer(from)
		for _, spec := range file.Imports {
			name := strings.Trim(spec.Path.Value, `"`)
			if strings.HasPrefix(name, oracleModule) {
				t.Errorf("%s imports %s: etcd's server is run as a program, never imported", path, name)
			}
			if strings.HasPrefix(name, "go.etcd.io/etcd/client/v3") && rank < 5 && !strings.HasSuffix(path, "_test.go") {
				t.Errorf("%s imports %s: the client is for tests and bench", path, name)
			}
			to, ok := strings.CutPrefix(name, "sluice/")
			if !ok {
				continue
			}
			toRank, toRoom := layer(to)
			if room != toRoom && toRank >= rank {
				t.Errorf("%s imports %s: declare the small interface you send to, and let runtime connect it", path, name)
			}
		}
	})
}

// style.md: a core is a function of its inputs. It starts no goroutine and asks for no time or randomness.
func TestCoresArePure(t *testing.T) {
	found := 0
	sources(t, 0, func(path string, fset *token.FileSet, file *ast.File) {
		base := filepath.Base(path)
		if !strings.HasPrefix(path, "stages/") || !strings.HasPrefix(base, "core") || strings.HasSuffix(base, "_test.go") {
			return
		}
		found++
		for _, spec := range file.Imports {
			switch name := strings.Trim(spec.Path.Value, `"`); name {
			case "math/rand", "math/rand/v2", "crypto/rand", "os", "net", "go.uber.org/zap":
				t.Errorf("%s imports %s: take it as an argument, or let the shell do it", path, name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s: a core starts no goroutine: send a message to a named worker", fset.Position(n.Pos()))
			case *ast.SelectStmt, *ast.SendStmt:
				t.Errorf("%s: a core knows no channel: append to its output", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "time" {
					switch n.Sel.Name {
					case "Now", "Since", "Until", "After", "NewTimer", "NewTicker", "Sleep", "AfterFunc":
						t.Errorf("%s: a core takes the time as an argument", fset.Position(n.Pos()))
					}
				}
			}
			return true
		})
	})
	if found < 6 {
		t.Errorf("%d core files found, want one per stage: name them core*.go", found)
	}
}

// style.md: every stage's package comment has the same headings in the same order.
func TestStageDocs(t *testing.T) {
	for _, stage := range []string{"propose", "replicate", "persist", "apply", "watch", "expire"} {
		path := filepath.Join("..", "stages", stage, "doc.go")
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Error(err)
			continue
		}
		doc, at := file.Doc.Text(), 0
		for _, heading := range []string{"Owns:", "Receives:", "Emits:", "Invariants:", "When full:", "Restart:"} {
			i := strings.Index(doc[at:], heading)
			if i < 0 {
				t.Errorf("%s: no %q after the headings before it", path, heading)
				continue
			}
			at += i
		}
		if len(file.Decls) > 0 {
			t.Errorf("%s: the contract and nothing else", path)
		}
	}
}

// No function hides in an init, and no file grows beyond what one sitting reads.
func TestFileShape(t *testing.T) {
	sources(t, parser.ParseComments, func(path string, fset *token.FileSet, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") || ast.IsGenerated(file) {
			return
		}
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s: no init: build it where it is used", fset.Position(fn.Pos()))
			}
		}
		data, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(path)))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(data), "\n"); n > 700 {
			t.Errorf("%s has %d lines: cut it where its parts part", path, n)
		}
	})
}
