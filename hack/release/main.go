// Command release makes the parts of a release of nftproxy beside its binaries: the
// image, the list of modules (SBOM), the manifests and the checksums. The Makefile's
// targets image and release call it. It builds no binary, and it publishes nothing.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"nftproxy/hack/release/image"
	"nftproxy/hack/release/manifest"
	"nftproxy/hack/release/sbom"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cmd := &cobra.Command{
		Use:          "release",
		Short:        "Make the parts of a release of nftproxy",
		SilenceUsage: true,
	}
	cmd.AddCommand(newImageCommand(), newManifestCommand(), newSBOMCommand())
	if err := cmd.ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

func newImageCommand() *cobra.Command {
	var full, out string
	cmd := &cobra.Command{
		Use:   "image BINARY...",
		Short: "Write an OCI image of static binaries, one for each architecture, as a tar archive",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, binaries []string) error {
			i, err := image.New(full, binaries...)
			if err != nil {
				return err
			}
			if err := writeFile(out, i.WriteTar); err != nil {
				return err
			}
			digest, err := i.Digest()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %s@%s\n", out, i.Name, digest)
			return err
		},
	}
	cmd.Flags().StringVar(&full, "name", "localhost/nftproxy:dev", "`name` of the image: REGISTRY/NAME:TAG")
	cmd.Flags().StringVarP(&out, "output", "o", "nftproxy-image.tar", "`file` to write")
	return cmd
}

func newManifestCommand() *cobra.Command {
	var image string
	cmd := &cobra.Command{
		Use:   "manifest FOLDER",
		Short: "Print the objects of a kustomization, such as deploy/overlays/kubeadm",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := manifest.Render(args[0], image)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&image, "image", "", "`name` of the image in place of that for development: REGISTRY/NAME:TAG")
	return cmd
}

func newSBOMCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sbom BINARY...",
		Short: "Print the modules of binaries as an SPDX document",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, binaries []string) error {
			return sbom.Write(cmd.OutOrStdout(), binaries...)
		},
	}
}

// writeFile writes a file whole or not at all.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // there is none after the rename
	if err := write(f); err != nil {
		_ = f.Close() // the error before it tells more
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
