package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// WriteRegistry writes an image into a new folder as agnhost's fake-registry-server
// serves it under a tag: blobs and manifests by their digests, and a file with the
// manifest's digest for the tag. It returns the files by their paths in the folder.
func WriteRegistry(folder, tag string, image Image) (map[string]string, error) {
	files := map[string]string{}
	// place makes the folder of a file.
	place := func(path ...string) (string, error) {
		name := filepath.Join(path...)
		files[name] = filepath.Join(folder, name)
		return files[name], os.MkdirAll(filepath.Dir(files[name]), 0o755)
	}
	nested := func(kind, digest string) (string, error) { return place(kind, "sha256", digest[:2], digest, "data") }
	write := func(kind string, content []byte) (string, error) {
		sum := sha256.Sum256(content)
		digest := hex.EncodeToString(sum[:])
		path, err := nested(kind, digest)
		if err != nil {
			return "", err
		}
		return digest, os.WriteFile(path, content, 0o644)
	}

	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	temp := filepath.Join(folder, "layer.tar")
	layer, err := writeLayer(temp, image)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(temp)
	if err != nil {
		return nil, err
	}
	path, err := nested("blobs", layer)
	if err != nil {
		return nil, err
	}
	if err := os.Rename(temp, path); err != nil {
		return nil, err
	}
	config, err := image.config(layer)
	if err != nil {
		return nil, err
	}
	configDigest, err := write("blobs", config)
	if err != nil {
		return nil, err
	}
	part := func(mediaType, digest string, size int64) map[string]any {
		return map[string]any{"mediaType": "application/vnd.oci.image." + mediaType, "digest": "sha256:" + digest,
			"size": size}
	}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2,
		"mediaType":     "application/vnd.oci.image.manifest.v1+json",
		"config":        part("config.v1+json", configDigest, int64(len(config))),
		"layers":        []any{part("layer.v1.tar", layer, info.Size())},
	})
	if err != nil {
		return nil, err
	}
	digest, err := write("manifests", manifest)
	if err != nil {
		return nil, err
	}
	if path, err = place("manifests", tag); err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, []byte("sha256:"+digest), 0o644); err != nil {
		return nil, fmt.Errorf("write the tag %s: %w", tag, err)
	}
	return files, nil
}
