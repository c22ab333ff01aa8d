package aptget

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Release is a release of Debian.
type Release struct {
	// Name is such as "bookworm" or "trixie-backports".
	Name string
	// Architecture is that of the packages, such as "arm64"; this computer's if it is empty.
	Architecture string
}

// Newest is a package of a Debian release that is unpacked.
type Newest struct {
	// Name and Version are those of the package, such as linux-image-6.1.0-56-amd64.
	Name, Version string
	// Dir has its files.
	Dir string
	// Old says why Debian could not be asked for a newer version, and is nil where it was.
	Old error
}

// UnpackNewest unpacks the package that another one stands for, as linux-image-amd64 does for the
// newest kernel of a release, security updates included. It keeps one folder for each version below
// dir, and asks Debian's index at each call. Without a network it takes what dir has.
func UnpackNewest(ctx context.Context, dir string, release Release, metapackage string) (Newest, error) {
	found, err := newest(ctx, dir, release, metapackage)
	if err == nil {
		return found, nil
	}
	err = fmt.Errorf("%s of Debian's %s: %w", metapackage, release.Name, err)
	old, failed := unpackedBefore(filepath.Join(dir, release.Name+"-"+metapackage))
	if failed != nil {
		return Newest{}, errors.Join(err, failed)
	}
	old.Old = err
	return old, nil
}

func newest(ctx context.Context, dir string, release Release, metapackage string) (Newest, error) {
	lists := filepath.Join(dir, release.Name+"-lists")
	sources := fmt.Sprintf("deb http://deb.debian.org/debian %s main\n", release.Name)
	if !strings.HasSuffix(release.Name, "-backports") { // which have their updates themselves
		sources += fmt.Sprintf("deb http://deb.debian.org/debian-security %s-security main\n", release.Name)
	}
	options, err := archive(lists, sources, release.Architecture)
	if err != nil {
		return Newest{}, err
	}
	if err := runIn(ctx, "", "apt-get", append(options[:len(options):len(options)], "update")...); err != nil {
		return Newest{}, err
	}
	meta, err := show(ctx, options, metapackage)
	if err != nil {
		return Newest{}, err
	}
	name, _, _ := strings.Cut(meta["Depends"], " ")
	pkg, err := show(ctx, options, name)
	if err != nil {
		return Newest{}, err
	}
	n := Newest{Name: name, Version: pkg["Version"]}
	n.Dir = filepath.Join(dir, release.Name+"-"+metapackage, n.Name+"_"+n.Version)
	download := append(options[:len(options):len(options)], "download", n.Name+"="+n.Version)
	return n, once(n.Dir, []string{n.Name + "=" + n.Version}, func(temp string) error {
		if err := runIn(ctx, temp, "apt-get", download...); err != nil {
			return err
		}
		archives, err := filepath.Glob(filepath.Join(temp, "*.deb"))
		if err != nil {
			return err
		}
		return errors.Join(os.MkdirAll(n.Dir, 0o700), extract(ctx, archives, n.Dir))
	})
}

// show returns the fields of a package's newest version.
func show(ctx context.Context, options []string, name string) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "apt-cache", append(options[:len(options):len(options)], "show", "--no-all-versions",
		name)...)
	out, err := cmd.Output()
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd, err)
	}
	return fields(string(out)), nil
}

// fields are those of a paragraph of a package index that stand on one line.
func fields(paragraph string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(paragraph) {
		name, value, found := strings.Cut(strings.TrimRight(line, "\n"), ": ")
		if found && !strings.HasPrefix(name, " ") {
			all[name] = value
		}
	}
	return all
}

// unpackedBefore is the package below dir that was unpacked last.
func unpackedBefore(dir string) (Newest, error) {
	stamps, err := filepath.Glob(filepath.Join(dir, "*", ".packages"))
	if err != nil {
		return Newest{}, err
	}
	if len(stamps) == 0 {
		return Newest{}, fmt.Errorf("nothing was unpacked in %s before", dir)
	}
	last := slices.MaxFunc(stamps, func(a, b string) int { return modified(a).Compare(modified(b)) })
	text, err := os.ReadFile(last)
	name, version, _ := strings.Cut(string(text), "=")
	return Newest{Name: name, Version: version, Dir: filepath.Dir(last)}, err
}

func modified(file string) time.Time {
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
