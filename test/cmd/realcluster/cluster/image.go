package cluster

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
)

// Image is an image to write.
type Image struct {
	// Names are full references, such as docker.io/library/nftproxy:dev.
	Names []string
	// Tree is a folder whose files are in the image. Empty: none.
	Tree string
	// Files are files of this computer by their paths in the image, without the
	// first slash. They are executable.
	Files map[string]string
	// Links are symbolic links: target by path.
	Links map[string]string
	// Dirs are empty folders that all may write to.
	Dirs []string
	// Entrypoint, Cmd and Env are those of a Dockerfile.
	Entrypoint, Cmd, Env []string
}

// WriteImage writes an archive in docker's format. The file is complete, or it is not
// there.
func WriteImage(path string, image Image) (err error) {
	temp, err := os.MkdirTemp(filepath.Dir(path), "image-")
	if err != nil {
		return fmt.Errorf("write image %s: %w", path, err)
	}
	defer func() {
		if err = errors.Join(err, os.RemoveAll(temp)); err != nil {
			err = fmt.Errorf("write image %s: %w", path, err)
		}
	}()
	layer := filepath.Join(temp, "layer.tar")
	digest, err := writeLayer(layer, image)
	if err != nil {
		return err
	}
	config, err := image.config(digest)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(config)
	name := hex.EncodeToString(sum[:]) + ".json"
	manifest, err := json.Marshal([]map[string]any{{"Config": name, "RepoTags": image.Names,
		"Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	archive := filepath.Join(temp, "image.tar")
	err = writeTar(archive, io.Discard, func(w *tar.Writer) error {
		return errors.Join(addText(w, "manifest.json", manifest), addText(w, name, config), addFile(w, "layer.tar", layer,
			0o644))
	})
	if err != nil {
		return err
	}
	return os.Rename(archive, path)
}

// config is the image's configuration, whose only layer has that digest.
func (i *Image) config(layer string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": i.Env},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + layer}},
	})
}

// writeLayer returns the layer's SHA-256 as hexadecimal digits.
func writeLayer(path string, image Image) (string, error) {
	hash := sha256.New()
	err := writeTar(path, hash, func(w *tar.Writer) error {
		for _, dir := range image.Dirs {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o1777}); err != nil {
				return err
			}
		}
		if image.Tree != "" {
			if err := addTree(w, image.Tree); err != nil {
				return err
			}
		}
		for _, name := range sorted(image.Files) {
			if err := addFile(w, name, image.Files[name], 0o755); err != nil {
				return err
			}
		}
		for _, name := range sorted(image.Links) {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: image.Links[name],
				Mode: 0o777}); err != nil {
				return err
			}
		}
		return nil
	})
	return hex.EncodeToString(hash.Sum(nil)), err
}

func sorted(m map[string]string) []string {
	var names []string
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// writeTar writes an archive to a file and to a second writer.
func writeTar(path string, second io.Writer, fill func(*tar.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(io.MultiWriter(f, second))
	return errors.Join(fill(w), w.Close(), f.Close())
}

func addText(w *tar.Writer, name string, text []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := w.Write(text)
	return err
}

func addFile(w *tar.Writer, name, path string, mode int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// addTree adds folders, files and symbolic links, with their modes and owners.
func addTree(w *tar.Writer, tree string) error {
	return filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == tree {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		target := ""
		switch info.Mode().Type() {
		case fs.ModeSymlink:
			if target, err = os.Readlink(path); err != nil {
				return err
			}
		case 0, fs.ModeDir:
		default:
			return nil // devices and sockets: a container gets its own
		}
		header, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		if header.Name, err = filepath.Rel(tree, path); err != nil {
			return err
		}
		if err := w.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(w, f)
		return err
	})
}
