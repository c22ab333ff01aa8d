// Command helm renders and packs the chart in deploy/helm by Helm's own library. The Makefile calls it for a release
// and for the real cluster. It installs nothing.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"nftproxy/hack/helm/chart"
)

func main() {
	cmd := &cobra.Command{Use: "helm", Short: "Render and pack the Helm chart of nftproxy", SilenceUsage: true}
	cmd.AddCommand(newTemplateCommand(), newPackageCommand())
	if err := cmd.Execute(); err != nil {
		os.Exit(1)
	}
}

func newTemplateCommand() *cobra.Command {
	var namespace, values string
	cmd := &cobra.Command{
		Use:   "template CHART",
		Short: "Print the objects of the chart, as helm template does",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r := chart.Release{Namespace: namespace}
			if err := yaml.Unmarshal([]byte(values), &r.Values); err != nil {
				return fmt.Errorf("--values: %w", err)
			}
			objects, err := chart.Render(args[0], r)
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), chart.Manifest(objects))
			return err
		},
	}
	cmd.Flags().StringVar(&namespace, "namespace", "kube-system", "`namespace` of the release")
	cmd.Flags().StringVar(&values, "values", "", "`values` as YAML, such as '{counters: tables}'")
	return cmd
}

func newPackageCommand() *cobra.Command {
	var out, version, repository, tag string
	cmd := &cobra.Command{
		Use:   "package CHART",
		Short: "Write the archive of the chart",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := chart.Pack(args[0], out, version, repository, tag)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), name)
			return err
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", ".", "`folder` to write into")
	cmd.Flags().StringVar(&version, "version", "", "`version` of the chart")
	cmd.Flags().StringVar(&repository, "repository", "localhost/nftproxy", "`name` of the image without its tag")
	cmd.Flags().StringVar(&tag, "tag", "", "`tag` of the image")
	return cmd
}
