package child

import (
	"fmt"
	"os/exec"
)

// Build builds, static and with the flags of "make build" except the version, the command in the folder pkg of a
// module, such as "./cmd/nftproxy", and writes the binary to path, which is absolute. module is the folder of the
// module, relative to the working directory. An error has the compiler's output.
func Build(path, module, pkg string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, pkg)
	cmd.Dir = module
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}
