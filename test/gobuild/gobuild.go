// Package gobuild promises a command of this repository as a static binary, for tests that
// run it as a process. It builds with the flags of "make build", except the version.
//
// It keeps no binary: the caller says where it goes, and removes it.
package gobuild

import (
	"fmt"
	"os/exec"
)

// Command builds the command in the folder pkg of a module, such as "./cmd/nftproxy", and
// writes the binary to path, which is absolute. module is the folder of the module,
// relative to the working directory. An error has the compiler's output.
func Command(path, module, pkg string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Dir = module
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
