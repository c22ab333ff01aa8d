package e2e

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// renderDeploy returns the objects of a kustomization in deploy/, such as
// overlays/kubeadm. If edit is not nil, each file passes through it first, by its path
// in deploy/: it makes the changes of a person.
func renderDeploy(t *testing.T, folder string, edit func(name string, text []byte) []byte) string {
	t.Helper()
	root := filepath.Join("..", "..", "deploy")
	if edit != nil {
		edited := t.TempDir()
		if err := copyTree(edited, root, edit); err != nil {
			t.Fatal(err)
		}
		root = edited
	}
	cmd := exec.Command(shared.release(t), "manifest", filepath.Join(root, folder))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, stderr.String())
	}
	return string(out)
}

// copyTree copies the files below a folder, each as edit returns it.
func copyTree(to, from string, edit func(name string, text []byte) []byte) error {
	return fs.WalkDir(os.DirFS(from), ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), edit(name, text), 0o600)
	})
}
