// One real OpenSearch node on loopback: folder and HTTP port are the arguments.
// It ends when it is told to (SIGTERM), not by itself.

import java.util.concurrent.CountDownLatch;
import org.codelibs.opensearch.runner.OpenSearchRunner;

public final class OpenSearchServer {
    public static void main(String[] arguments) throws Exception {
        String folder = arguments[0];
        String port = arguments[1];
        OpenSearchRunner runner = new OpenSearchRunner();
        runner.onBuild((number, settings) -> {
            settings.put("network.host", "127.0.0.1");
            settings.put("http.port", port);
            settings.put("transport.port", "0");
            settings.put("discovery.type", "single-node");
            settings.putList("discovery.seed_hosts");
            // A test writes little; a disk that is nearly full is not its business.
            settings.put("cluster.routing.allocation.disk.threshold_enabled", false);
        });
        runner.build(OpenSearchRunner.newConfigs()
            .basePath(folder)
            .clusterName("onceward")
            .numOfNode(1));
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                runner.close();
            } catch (java.io.IOException error) {
                System.err.println(error);
            }
        }));
        new CountDownLatch(1).await();
    }
}
