// Package manifest promises the objects of a kustomization in deploy/ as YAML, the same
// that kubectl kustomize prints. It applies nothing.
package manifest

import (
	"fmt"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Render builds the kustomization in a folder. Like kubectl, it reads no file outside of
// the kustomizations that the folder names.
func Render(folder string) ([]byte, error) {
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, fmt.Errorf("build the kustomization %s: %w", folder, err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		return nil, fmt.Errorf("write the objects of %s: %w", folder, err)
	}
	return text, nil
}
