package image

import (
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"time"
)

// binary is a nftproxy binary, and what it says of its own build.
type binary struct {
	path string
	// os and arch are those of Go (GOOS, GOARCH), which are those of OCI too.
	os, arch string
	// version is the module's version; revision and time are the commit's. They are
	// empty, and the zero time, in a binary that was built outside of a repository.
	version, revision string
	time              time.Time
}

// read reads a binary's build information. A binary that needs a dynamic loader is an
// error: the image has none.
func read(path string) (binary, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return binary{}, fmt.Errorf("read build information: %w", err)
	}
	b := binary{path: path}
	if v := info.Main.Version; v != "(devel)" {
		b.version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS":
			b.os = s.Value
		case "GOARCH":
			b.arch = s.Value
		case "vcs.revision":
			b.revision = s.Value
		case "vcs.time":
			if b.time, err = time.Parse(time.RFC3339, s.Value); err != nil {
				return binary{}, fmt.Errorf("%s: time of the commit: %w", path, err)
			}
		}
	}
	if b.os != "linux" || b.arch == "" {
		return binary{}, fmt.Errorf("%s is for %s/%s: want a binary for Linux", path, b.os, b.arch)
	}
	if err := checkStatic(path); err != nil {
		return binary{}, fmt.Errorf("%s: %w", path, err)
	}
	return b, nil
}

// checkStatic looks for the ELF segment that names a dynamic loader.
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("needs a dynamic loader, which the image has not: build it with CGO_ENABLED=0")
		}
	}
	return nil
}
