package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// buildScript builds the tools, from the root of the repository.
const buildScript = "hack/build-tools.sh"

// KubernetesVariable is an environment variable that names a minor release of Kubernetes, such as 1.38:
// hack/build-tools.sh builds Kubernetes' programs of that one. Without it they are those of 1.37.
const KubernetesVariable = "KUBERNETES"

// ToolsDir is the folder of the programs of hack/build-tools.sh, and module that of the Go module which pins
// Kubernetes, both from the root of the repository.
func ToolsDir() (dir, module string) {
	dir, module = filepath.Join("hack", "tools", "bin"), filepath.Join("hack", "tools")
	if release := os.Getenv(KubernetesVariable); release != "" && release != "1.37" {
		dir, module = filepath.Join(dir, release), filepath.Join("hack", "kubernetes-"+release)
	}
	return dir, module
}

// Tool returns the path of a binary that hack/build-tools.sh knows (etcd, kube-apiserver,
// kube-controller-manager, kube-proxy). It builds the binary if it is missing or older
// than its pinned version. That takes minutes from cold, milliseconds otherwise. The
// working directory must lie inside the repository, as it does in `go test`.
func Tool(ctx context.Context, name string) (string, error) {
	root, err := repositoryRoot()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(root, buildScript), name)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // a cancelled script leaves a compiler behind, which holds the output open
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out.Bytes())
	}
	dir, _ := ToolsDir()
	return filepath.Join(root, dir, name), nil
}

// repositoryRoot is the closest parent of the working directory that has the build script.
func repositoryRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		_, err := os.Stat(filepath.Join(dir, buildScript))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no parent of %s has %s", start, buildScript)
		}
	}
}
