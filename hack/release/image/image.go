// Package image promises the OCI image of nftproxy as one tar archive: one image for
// each given binary, with that binary as its only file, under one index. The same
// binaries and name give the same bytes, whatever the time, the machine and the folder.
//
// The package needs no container engine and no registry. It does not build binaries, and
// it does not push images.
package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// entrypoint is the path of the binary in the image.
const entrypoint = "/nftproxy"

// Image is an image for one or more architectures.
type Image struct {
	// Name is the full name, such as localhost/nftproxy:v1.2.3.
	Name  string
	index v1.ImageIndex
}

// New makes an image of binaries, one for each architecture. The name has a registry and
// a tag. The time of the image is that of the newest commit of the binaries, or 1970
// where they name none.
func New(full string, paths ...string) (*Image, error) {
	tag, err := name.NewTag(full, name.StrictValidation)
	if err != nil {
		return nil, fmt.Errorf("name of the image: %w: want REGISTRY/NAME:TAG, such as localhost/nftproxy:dev", err)
	}
	if len(paths) == 0 {
		return nil, errors.New("an image needs at least one binary")
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	paths = slices.Clone(paths)
	seen := map[string]string{}
	var binaries []binary
	for _, p := range paths {
		b, err := read(p)
		if err != nil {
			return nil, err
		}
		if other := seen[b.arch]; other != "" {
			return nil, fmt.Errorf("%s and %s are both for %s", other, p, b.arch)
		}
		seen[b.arch] = p
		binaries = append(binaries, b)
	}
	// The order of the arguments must not show in the result.
	slices.SortFunc(binaries, func(a, b binary) int { return strings.Compare(a.arch, b.arch) })
	for _, b := range binaries {
		image, err := one(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.path, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: b.os, Architecture: b.arch}},
		})
	}
	return &Image{Name: tag.Name(), index: index}, nil
}

// one makes the image of one binary.
func one(b binary) (v1.Image, error) {
	layer, err := layer(b)
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: b.time.UTC()}
	if b.time.IsZero() {
		created.Time = time.Unix(0, 0).UTC()
	}
	image := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	image = mutate.ConfigMediaType(image, types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: created, CreatedBy: "hack/release image", Comment: "the static binary nftproxy"},
	})
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = b.os, b.arch, created
	file.Config = v1.Config{
		// The group root may read which tables iptables-legacy has (/proc/net/ip_tables_names).
		User:       "65532:0",
		Entrypoint: []string{entrypoint},
		Cmd:        []string{"run"},
		WorkingDir: "/",
		Labels:     labels(b),
	}
	return mutate.ConfigFile(image, file)
}

// labels are the annotations of the OCI image specification that the binary can answer.
func labels(b binary) map[string]string {
	const prefix = "org.opencontainers.image."
	l := map[string]string{
		prefix + "title":       "nftproxy",
		prefix + "description": "a Kubernetes service proxy that programs nftables over netlink",
		prefix + "licenses":    "Apache-2.0",
	}
	if b.version != "" {
		l[prefix+"version"] = b.version
	}
	if b.revision != "" {
		l[prefix+"revision"] = b.revision
	}
	return l
}

// fileCapability is CAP_NET_ADMIN as a permitted file capability (struct vfs_cap_data of linux/capability.h, revision
// 2): a user other than root has it then, if the container has it. It is not effective in the file. Otherwise the
// kernel would refuse to start the binary where the container lacks the capability; nftproxy makes it effective itself.
//
// In little endian: the revision, the permitted capabilities (bit 12 is CAP_NET_ADMIN), and 12 bytes for the
// inheritable and the upper ones.
const fileCapability = "\x00\x00\x00\x02" + "\x00\x10\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// layer is a file system with the binary only.
func layer(b binary) (v1.Layer, error) {
	content, err := os.ReadFile(b.path)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	header := tar.Header{
		Typeflag: tar.TypeReg, Name: strings.TrimPrefix(entrypoint, "/"), Mode: 0o555, Size: int64(len(content)),
		ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
		PAXRecords: map[string]string{"SCHILY.xattr.security.capability": fileCapability},
	}
	if err := errors.Join(w.WriteHeader(&header), write(w, content), w.Close()); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
}

func write(w io.Writer, b []byte) error {
	_, err := w.Write(b)
	return err
}

// Digest is the digest of the index, as "sha256:...". A registry has the image under it.
func (i *Image) Digest() (string, error) {
	h, err := i.index.Digest()
	return h.String(), err
}

// WriteTar writes an OCI image layout as a tar archive. Containerd takes the image's name
// from it (ctr images import); skopeo and podman read it as oci-archive.
func (i *Image) WriteTar(w io.Writer) error {
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	if err := addIndex(files, i.index); err != nil {
		return err
	}
	top, err := i.top()
	if err != nil {
		return err
	}
	files["index.json"] = top
	archive := tar.NewWriter(w)
	for _, dir := range []string{"blobs/", "blobs/sha256/"} {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: time.Unix(0, 0),
			Format: tar.FormatUSTAR}); err != nil {
			return err
		}
	}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		header := tar.Header{Typeflag: tar.TypeReg, Name: p, Mode: 0o644, Size: int64(len(files[p])),
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := errors.Join(archive.WriteHeader(&header), write(archive, files[p])); err != nil {
			return fmt.Errorf("write %s: %w", p, err)
		}
	}
	return archive.Close()
}

// top is index.json of the layout: it has the image's index as its only entry, with the
// image's name.
func (i *Image) top() ([]byte, error) {
	tag, err := name.NewTag(i.Name)
	if err != nil {
		return nil, err
	}
	return mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), mutate.IndexAddendum{
		Add: i.index,
		Descriptor: v1.Descriptor{Annotations: map[string]string{
			"io.containerd.image.name":          i.Name, // containerd's, the full name
			"org.opencontainers.image.ref.name": tag.TagStr(),
		}},
	}).RawManifest()
}

// addIndex adds the blobs of an index and its images.
func addIndex(files map[string][]byte, index v1.ImageIndex) error {
	raw, err := index.RawManifest()
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	files[blob(digest)] = raw
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for _, m := range manifest.Manifests {
		image, err := index.Image(m.Digest)
		if err != nil {
			return err
		}
		if err := addImage(files, image); err != nil {
			return err
		}
	}
	return nil
}

// addImage adds the blobs of one image: its manifest, its configuration and its layers.
func addImage(files map[string][]byte, image v1.Image) error {
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	if files[blob(digest)], err = image.RawManifest(); err != nil {
		return err
	}
	config, err := image.ConfigName()
	if err != nil {
		return err
	}
	if files[blob(config)], err = image.RawConfigFile(); err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		r, err := l.Compressed()
		if err != nil {
			return err
		}
		files[blob(digest)], err = io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return err
		}
	}
	return nil
}

func blob(h v1.Hash) string { return path.Join("blobs", h.Algorithm, h.Hex) }
