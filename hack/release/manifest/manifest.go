// Package manifest promises the objects of a kustomization in deploy/ as YAML, the same
// that kubectl kustomize prints. It applies nothing.
package manifest

import (
	"fmt"

	"github.com/google/go-containerregistry/pkg/name"
	"sigs.k8s.io/kustomize/api/filters/imagetag"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// development is the image that the kustomizations name, without its tag.
const development = "localhost/nftproxy"

// Render builds the kustomization in a folder. If image is not empty, it takes the place
// of the image for development; it is REGISTRY/NAME:TAG. Like kubectl, Render reads no
// file outside of the kustomizations that the folder names.
func Render(folder, image string) ([]byte, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, fmt.Errorf("build the kustomization %s: %w", folder, err)
	}
	if image != "" {
		tag, err := name.NewTag(image, name.StrictValidation)
		if err != nil {
			return nil, fmt.Errorf("name of the image: %w", err)
		}
		set := types.Image{Name: development, NewName: tag.Context().Name(), NewTag: tag.TagStr()}
		if err := resources.ApplyFilter(imagetag.LegacyFilter{ImageTag: set}); err != nil {
			return nil, fmt.Errorf("set the image in %s: %w", folder, err)
		}
	}
	text, err := resources.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("write the objects of %s: %w", folder, err)
	}
	return text, nil
}
