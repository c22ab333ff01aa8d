// Package chart promises what Helm makes of the chart in deploy/helm: its objects for some values, what Helm's linter
// says, and its archive. It asks no API server, and it installs nothing.
package chart

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	v2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
)

// Release is an installation of the chart. It has the name nftproxy.
type Release struct {
	Namespace string
	// Values take the place of those in values.yaml.
	Values map[string]any
}

// Render returns the objects by the names of their templates, such as daemonset.yaml. Templates without objects are not
// among them. Values that the chart's schema or its templates refuse are an error.
func Render(folder string, r Release) (map[string]string, error) {
	c, err := loader.Load(folder)
	if err != nil {
		return nil, fmt.Errorf("read the chart: %w", err)
	}
	values, err := util.ToRenderValues(c, r.Values, common.ReleaseOptions{Name: "nftproxy", Namespace: r.Namespace,
		IsInstall: true}, nil)
	if err != nil {
		return nil, fmt.Errorf("values of the chart: %w", err)
	}
	files, err := engine.Render(c, values)
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w", err)
	}
	objects := map[string]string{}
	for name, text := range files {
		if text = strings.TrimLeft(text, "\n"); strings.TrimSpace(text) != "" && path.Ext(name) == ".yaml" {
			objects[path.Base(name)] = text
		}
	}
	return objects, nil
}

// Manifest is one text with all objects of Render.
func Manifest(objects map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		parts = append(parts, objects[name])
	}
	return strings.Join(parts, "---\n")
}

// Lint returns what Helm's linter has to say, but for hints (a chart without an icon).
func Lint(folder string, r Release) error {
	var errs []error
	for _, m := range lint.RunAll(folder, r.Values, r.Namespace).Messages {
		if m.Severity > support.InfoSev {
			errs = append(errs, m)
		}
	}
	return errors.Join(errs...)
}

// Pack writes the chart's archive into a folder, and returns its name. The chart gets a version (semantic, with or
// without "v"), and the name and tag of the image of that version. The same chart gives the same bytes.
func Pack(folder, out, version, repository, tag string) (string, error) {
	c, err := loader.Load(folder)
	if err != nil {
		return "", fmt.Errorf("read the chart: %w", err)
	}
	c.Metadata.Version, c.Metadata.AppVersion = strings.TrimPrefix(version, "v"), tag
	if err := setRepository(c, repository); err != nil {
		return "", err
	}
	setTimes(c, time.Unix(0, 0))
	name, err := chartutil.Save(c, out)
	if err != nil {
		return "", fmt.Errorf("pack the chart: %w", err)
	}
	return name, nil
}

// setTimes gives all files one time. Otherwise the archive would have the times of the checkout.
func setTimes(c *v2.Chart, at time.Time) {
	c.ModTime, c.SchemaModTime = at, at
	for _, files := range [][]*common.File{c.Raw, c.Templates, c.Files} {
		for _, f := range files {
			f.ModTime = at
		}
	}
}

// setRepository writes the name of the image into values.yaml as text, so that its comments stay.
func setRepository(c *v2.Chart, repository string) error {
	const development = "repository: localhost/nftproxy\n"
	for _, f := range c.Raw {
		if f.Name != "values.yaml" {
			continue
		}
		if strings.Count(string(f.Data), development) != 1 {
			return errors.New("values.yaml does not have the image for development once")
		}
		f.Data = []byte(strings.Replace(string(f.Data), development, "repository: "+repository+"\n", 1))
		return nil
	}
	return errors.New("the chart has no values.yaml")
}
