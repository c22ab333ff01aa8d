package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// archive is a cpio archive of the format "newc", which kernels read. Its methods do nothing after
// an error, which close returns.
type archive struct {
	w       io.Writer
	written int64
	inode   uint32
	made    map[string]bool
	err     error
}

// newArchive makes an archive that is written to w.
func newArchive(w io.Writer) *archive { return &archive{w: w, made: map[string]bool{}} }

// File types in the mode of an archive's entry.
const (
	typeDir     = 0o040000
	typeFile    = 0o100000
	typeSymlink = 0o120000
)

// dir adds a directory and those above it, each once.
func (a *archive) dir(name string) {
	name = path.Clean(strings.TrimPrefix(name, "/"))
	if name == "." || a.made[name] {
		return
	}
	a.dir(path.Dir(name))
	a.made[name] = true
	a.entry(name, typeDir|0o755, 0, nil)
}

// file adds a file with its directories.
func (a *archive) file(name string, mode fs.FileMode, content []byte) {
	a.dir(path.Dir(name))
	a.entry(name, typeFile|uint32(mode.Perm()), int64(len(content)), strings.NewReader(string(content)))
}

// symlink adds a symbolic link with its directories.
func (a *archive) symlink(name, target string) {
	a.dir(path.Dir(name))
	a.entry(name, typeSymlink|0o777, int64(len(target)), strings.NewReader(target))
}

// copyFile adds a file of this computer under a name.
func (a *archive) copyFile(name, file string) {
	if a.err != nil {
		return
	}
	info, err := os.Lstat(file)
	if err != nil {
		a.err = err
		return
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(file)
		a.err = err
		a.symlink(name, target)
		return
	}
	f, err := os.Open(file)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	a.dir(path.Dir(name))
	a.entry(name, typeFile|uint32(info.Mode().Perm()), info.Size(), f)
}

// tree adds the files below a directory of this computer, but for those of which skip tells.
func (a *archive) tree(name, dir string, skip func(relative string) bool) {
	if a.err != nil {
		return
	}
	a.dir(name)
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || file == dir {
			return err
		}
		relative, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		target := path.Join(name, filepath.ToSlash(relative))
		switch {
		case skip != nil && skip(relative):
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.IsDir():
			a.dir(target)
		case d.Type().IsRegular() || d.Type()&fs.ModeSymlink != 0:
			a.copyFile(target, file)
		}
		return a.err
	})
	if a.err == nil {
		a.err = err
	}
}

// close ends the archive and returns the first error.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, 0, nil)
	return a.err
}

// entry writes a header and content of the given size, each padded to four bytes.
func (a *archive) entry(name string, mode uint32, size int64, content io.Reader) {
	if a.err != nil {
		return
	}
	name = strings.TrimPrefix(name, "/")
	a.inode++
	links := 1
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name)+1, 0)
	a.copy(strings.NewReader(header+name+"\x00"), int64(len(header)+len(name)+1))
	a.pad()
	if content != nil {
		a.copy(content, size)
		a.pad()
	}
}

func (a *archive) copy(from io.Reader, size int64) {
	if a.err != nil {
		return
	}
	n, err := io.CopyN(a.w, from, size)
	a.written += n
	a.err = err
}

func (a *archive) pad() {
	if rest := a.written % 4; rest > 0 {
		a.copy(strings.NewReader("\x00\x00\x00"), 4-rest)
	}
}
