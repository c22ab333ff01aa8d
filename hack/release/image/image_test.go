package image_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"nftproxy/hack/release/image"
)

// build builds a small program for an architecture, in a folder of its own.
func build(t *testing.T, arch string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), "module example.org/small\n\ngo 1.26\n")
	write(t, filepath.Join(dir, "main.go"), "package main\n\nfunc main() { println(\"small\") }\n")
	out := filepath.Join(dir, "small")
	c := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-o", out}, append(flags, ".")...)...)
	c.Dir = dir
	c.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func archive(t *testing.T, name string, binaries ...string) (*image.Image, []byte) {
	t.Helper()
	i, err := image.New(name, binaries...)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := i.WriteTar(&b); err != nil {
		t.Fatal(err)
	}
	return i, b.Bytes()
}

// unpack unpacks an archive and opens it as an OCI image layout.
func unpack(t *testing.T, b []byte) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		at := filepath.Join(dir, h.Name)
		if h.Typeflag == tar.TypeDir {
			if err := os.Mkdir(at, 0o700); err != nil {
				t.Fatal(err)
			}
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		write(t, at, string(content))
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

const named = "localhost/nftproxy:v1.2.3"

// TestReproducible: the same program, built in two folders, gives the same archive. The
// order of the architectures does not matter. Another program gives another digest.
func TestReproducible(t *testing.T) {
	one, first := archive(t, named, build(t, "amd64"), build(t, "arm64"))
	two, second := archive(t, named, build(t, "arm64"), build(t, "amd64"))
	if !bytes.Equal(first, second) {
		t.Error("two archives of the same program differ")
	}
	other, _ := archive(t, named, build(t, "amd64", "-ldflags=-w"), build(t, "arm64"))
	digests := make([]string, 3)
	for n, i := range []*image.Image{one, two, other} {
		var err error
		if digests[n], err = i.Digest(); err != nil {
			t.Fatal(err)
		}
	}
	if digests[0] != digests[1] || digests[0] == digests[2] {
		t.Errorf("digests %q: want the first two equal, and the third another", digests)
	}
}

// TestLayout reads the archive back by the library: every digest and size is right, and
// each image has the binary of its architecture as its only file.
func TestLayout(t *testing.T) {
	binaries := map[string]string{"amd64": build(t, "amd64"), "arm64": build(t, "arm64")}
	_, b := archive(t, named, binaries["amd64"], binaries["arm64"])
	top := unpack(t, b)
	if err := validate.Index(top); err != nil {
		t.Error(err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("index.json has %d entries, want the one index", len(manifest.Manifests))
	}
	if diff := cmp.Diff(map[string]string{"io.containerd.image.name": named,
		"org.opencontainers.image.ref.name": "v1.2.3"}, manifest.Manifests[0].Annotations); diff != "" {
		t.Errorf("name of the image (-want +got):\n%s", diff)
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	images, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range images.Manifests {
		got = append(got, m.Platform.String())
		i, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, i, m.Platform.Architecture, binaries[m.Platform.Architecture])
	}
	if diff := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, got); diff != "" {
		t.Errorf("platforms (-want +got):\n%s", diff)
	}
}

func checkImage(t *testing.T, i v1.Image, arch, program string) {
	t.Helper()
	config, err := i.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c := config.Config
	got := []string{config.OS, config.Architecture, c.User, strings.Join(c.Entrypoint, " "), strings.Join(c.Cmd, " "),
		config.Created.UTC().Format("2006")}
	if diff := cmp.Diff([]string{"linux", arch, "65532:0", "/nftproxy", "run", "1970"}, got); diff != "" {
		t.Errorf("%s: configuration (-want +got):\n%s", arch, diff)
	}
	layers, err := i.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%s: %d layers, %v: want one", arch, len(layers), err)
	}
	r, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	want, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	files := tar.NewReader(r)
	h, err := files.Next()
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(files)
	if err != nil {
		t.Fatal(err)
	}
	if h.Name != "nftproxy" || h.Mode != 0o555 || h.Uid != 0 || !bytes.Equal(content, want) {
		t.Errorf("%s: file %s, mode %o, owner %d, %d bytes: want nftproxy, 555, 0 and the %d bytes of the binary", arch,
			h.Name, h.Mode, h.Uid, len(content), len(want))
	}
	// The words of struct vfs_cap_data: revision 2 without the bit effective, and NET_ADMIN permitted.
	words := make([]uint32, 5)
	if _, err := binary.Decode([]byte(h.PAXRecords["SCHILY.xattr.security.capability"]), binary.LittleEndian,
		words); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]uint32{0x02000000, 1 << 12, 0, 0, 0}, words); diff != "" {
		t.Errorf("%s: file capability (-want +got):\n%s", arch, diff)
	}
	if h, err := files.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("%s: there is also %v (%v)", arch, h, err)
	}
}

// TestRefused: what makes no image that runs, and the reason.
func TestRefused(t *testing.T) {
	amd64, shell := build(t, "amd64"), "/bin/sh"
	for _, c := range []struct {
		name     string
		binaries []string
		want     string
	}{
		{"nftproxy:dev:x", []string{amd64}, "want REGISTRY/NAME:TAG"},
		{"nftproxy", []string{amd64}, "want REGISTRY/NAME:TAG"},
		{named, nil, "at least one binary"},
		{named, []string{amd64, build(t, "amd64")}, "are both for amd64"},
		{named, []string{shell}, "read build information"},
		{named, []string{dynamic(t)}, "needs a dynamic loader"},
	} {
		_, err := image.New(c.name, c.binaries...)
		if !strings.Contains(fmt.Sprint(err), c.want) {
			t.Errorf("%s of %v: error %v, want %q", c.name, c.binaries, err, c.want)
		}
	}
}

// dynamic builds a program that needs a dynamic loader.
func dynamic(t *testing.T) string {
	t.Helper()
	return build(t, "amd64", "-buildmode=pie", "-ldflags=-linkmode=internal")
}
